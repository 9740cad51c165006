#!/bin/sh
# allreduce_test.sh PROGRAM: the main job, by 2 to 4 ranks in processes of their own, over the transport that the environment
# names; the program checks every result and that all ranks have the same bytes.
set -eu
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ONEBIT_SOCKET_IFNAME=lo ONEBIT_DEBUG=INFO
for ranks in 2 3 4; do
  "$program" -R "$ranks" -b 4K -e 1M -f 16 -n 2 -w 1 >"$folder/out" 2>&1 || { cat "$folder/out"; echo "allreduce_test: $ranks ranks failed"; exit 1; }
  grep -q 'transport ucx' "$folder/out" || { cat "$folder/out"; echo "allreduce_test: not over UCX"; exit 1; }
  grep -q 'Out of bounds values : 0 OK' "$folder/out" && grep -q 'Equal on all ranks   : yes OK' "$folder/out" || { cat "$folder/out"; exit 1; }
done
