#!/bin/bash
# make_stubs.sh REAL OBJECT...: writes C++ with a function for each one that the real library REAL exports and no OBJECT
# defines. Called, it says its name and ends the program.
set -euo pipefail
real=$1
shift
have=$(mktemp)
trap 'rm -f "$have"' EXIT
nm "$@" | awk '$2 ~ /[TW]/ {print $3}' | sort -u >"$have"
cat <<'END'
// Made by make_stubs.sh: what the stand-in does not implement.
#include <cstdio>
#include <cstdlib>
[[noreturn]] static void missing(const char* name) {
  std::fprintf(stderr, "cuda_cpu: %s is not implemented by the stand-in\n", name);
  std::abort();
}
END
nm -D --defined-only "$real" | awk '$2 ~ /[TW]/ {sub(/@.*/, "", $3); print $3}' | sort -u | comm -23 - "$have" |
  grep -E '^(cuda|__cuda|p?nccl)' | sed 's/.*/extern "C" [[noreturn]] void &();\nextern "C" void &() { missing("&"); }/'
