#!/bin/sh
# run_client.sh SHIM PATTERN CLIENT ARGUMENT...: runs a job under the shim, and wants it to end well and to say PATTERN.
shim=$1 pattern=$2
shift 2
output=$(LD_PRELOAD=$shim "$@" 2>&1)
status=$?
printf '%s\n' "$output" | tail -n 40
[ "$status" -eq 0 ] || { echo "the job ended with $status"; exit 1; }
printf '%s\n' "$output" | grep -Eq "$pattern" || { echo "the job did not say: $pattern"; exit 1; }
