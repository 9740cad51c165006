#!/bin/bash
# golden_test ONEBIT_GOLDEN DATA: onebit_golden finds out what is not as recorded.
set -euo pipefail
program=$1
data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$data"/index.json "$data"/onebit_adam-w2.* "$work"

expect() {
  local due=$1 status=0
  shift
  "$program" "$work" --case onebit_adam-w2 >"$work/log" 2>&1 || status=$?
  [ "$status" -eq "$due" ] && return
  cat "$work/log"
  echo "$*: exit status $status, not $due"
  exit 1
}

expect 0 "as it was recorded"
# One parameter of the last step, by a little more than the tolerance: the upper bits of its fp32 stay.
python3 - "$work/onebit_adam-w2.params.f32" <<'PYTHON'
import struct, sys
with open(sys.argv[1], "r+b") as file:
    file.seek(-4, 2)
    value, = struct.unpack("<f", file.read(4))
    file.seek(-4, 2)
    file.write(struct.pack("<f", value + 4e-6))
PYTHON
expect 1 "with one parameter changed"
truncate -s -4 "$work/onebit_adam-w2.params.f32"
expect 2 "with a file that is too short"
rm "$work/index.json"
expect 2 "without an index"
