#!/bin/bash
# exports_test: what must be true of libonebit.so as a file.
#
#   exports_test.sh LIBRARY SOURCE_FOLDER
#
# It exports exactly the functions that the public headers declare, the C99 tests use each of them, and no library that only some
# machines have (CUDA, NCCL, UCX, ibverbs, MPI) is needed to load it.
set -eu
library=$1
headers=("$2/include/onebit/onebit.h" "$2/include/onebit/optimizer.h")
c_tests=("$2/tests/api/c99_test.c" "$2/tests/api/optimizer_c99_test.c")
status=0

declared=$(grep -ohE '^ONEBIT_API .*' "${headers[@]}" | grep -oE 'onebit[A-Za-z0-9]+\(' | tr -d '(' | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)
[ -n "$declared" ] || { echo "no declarations found in ${headers[*]}"; exit 1; }

difference=$(diff <(echo "$declared") <(echo "$exported")) || {
  echo "the headers (<) and the exports of $(basename "$library") (>) differ:"
  echo "$difference"
  status=1
}
for name in $declared; do
  grep -q "\b$name(" "${c_tests[@]}" || { echo "the C99 tests do not use $name"; status=1; }
done
if readelf -d "$library" | grep NEEDED | grep -E 'cuda|cudart|nvidia|nccl|ucp|ucs|uct|ibverbs|rdmacm|mpi'; then
  echo "$(basename "$library") must load without these: open them on first use"
  status=1
fi
[ $status -ne 0 ] || echo "$(echo "$declared" | wc -l) functions declared, exported and used from C99"
exit $status
