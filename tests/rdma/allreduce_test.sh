#!/bin/sh
# allreduce_test.sh PROGRAM: the main job, by 2 to 4 ranks over the two devices of the VM. The transport is chosen by itself and
# must be verbs; the program checks every result and that all ranks have the same bytes.
set -eu
program=$1
export ONEBIT_SOCKET_IFNAME=lo ONEBIT_DEBUG=INFO MASTER_ADDR=127.0.0.1
ibv_devinfo || echo "(ibv_devinfo is in the package ibverbs-utils)"
for ranks in 2 3 4; do
  export WORLD_SIZE=$ranks MASTER_PORT=$((29500 + ranks))
  jobs=""
  for rank in $(seq 0 $((ranks - 1))); do
    RANK=$rank LOCAL_RANK=$rank ONEBIT_IB_HCA="=rxe$((rank % 2))" "$program" -b 4K -e 256K -f 64 -n 2 -w 1 >"/tmp/rank$rank" 2>&1 &
    jobs="$jobs $!"
  done
  failed=0
  for job in $jobs; do wait "$job" || failed=1; done
  grep -v 'info allreduce' /tmp/rank0
  [ $failed = 0 ] || { cat /tmp/rank*; echo "allreduce_test: a rank failed"; exit 1; }
  for rank in $(seq 0 $((ranks - 1))); do
    grep -q 'transport verbs (RoCE v2, IPv4)' "/tmp/rank$rank" || { echo "allreduce_test: rank $rank does not use verbs"; exit 1; }
  done
  grep -q 'Out of bounds values : 0 OK' /tmp/rank0 && grep -q 'Equal on all ranks   : yes OK' /tmp/rank0
done
