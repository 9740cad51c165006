#!/bin/bash
# exports_test: what must be true of libnccl-net-onebit.so as a file.
#
#   exports_test.sh LIBRARY
#
# It exports the tables of versions 6 to 12 and nothing else, refers to nothing of NCCL or CUDA, and stays loaded.
set -eu
library=$1
status=0

expected=$(for version in 6 7 8 9 10 11 12; do echo "ncclNetPlugin_v$version"; done | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort)
difference=$(diff <(echo "$expected") <(echo "$exported")) || {
  echo "what it must export (<) and what it exports (>) differ:"
  echo "$difference"
  status=1
}
if readelf -d "$library" | grep NEEDED | grep -E 'cuda|cudart|nvidia|nccl|ucp|ucs|uct|ibverbs|rdmacm|mpi'; then
  echo "it must load without these"
  status=1
fi
if nm -D --undefined-only "$library" | grep -E ' (nccl|cuda|cu[A-Z])'; then
  echo "it must not refer to these"
  status=1
fi
readelf -d "$library" | grep -q NODELETE || {
  echo "it must be linked with -z nodelete: threads of NCCL may be in it when NCCL unloads it"
  status=1
}
[ $status -ne 0 ] || echo "7 tables exported, nothing of NCCL or CUDA needed, never unloaded"
exit $status
