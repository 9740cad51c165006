#!/bin/bash
# examples_test FOLDER_OF_PROGRAMS SOURCE_FOLDER: the examples do what they say on 4 ranks, and stay short enough to copy.
set -euo pipefail
programs=$1
source=$2

lines=$(wc -l <"$source/examples/train.cc")
[ "$lines" -lt 60 ] || { echo "examples/train.cc has $lines lines; it is to have fewer than 60"; exit 1; }

export WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 ONEBIT_SOCKET_IFNAME=lo ONEBIT_INIT_TIMEOUT=30s ONEBIT_TIMEOUT=30s
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
ranks=()
for rank in 0 1 2 3; do
  RANK=$rank "$programs/example_train" &
  ranks+=($!)
done
status=0
for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
[ $status -eq 0 ] || echo "a rank of example_train failed"
exit $status
