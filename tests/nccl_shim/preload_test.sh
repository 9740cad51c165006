#!/bin/sh
# preload_test.sh SHIM OPEN_LOCAL LOCAL_JOB WITHOUT_NCCL NCCL: what LD_PRELOAD does to programs of all kinds.
shim=$1 open_local=$2 local_job=$3 without_nccl=$4 nccl=$5
fail() { echo "FAILED: $*"; exit 1; }

# A child that inherits it and never uses NCCL says nothing and ends as ever.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_BLOCK=nonsense ONEBIT_DEBUG=TRACE sh -c 'ls / >/dev/null; exit 7' 2>&1)
[ $? -eq 7 ] && [ -z "$output" ] || fail "a child without NCCL: $output"

# It needs nothing but the C library, and shows nothing but what it takes the place of.
others=$(readelf -d "$shim" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev '^(libc\.so\.6|libm\.so\.6|ld-linux-.*)$')
[ -z "$others" ] || fail "it needs $others"
others=$(nm -D --defined-only "$shim" | awk '{print $3}' | grep -Ev '^(nccl[A-Z]|onebit(TagBuffer|UntagBuffer|ScopeBegin|ScopeEnd)$)')
[ -z "$others" ] || fail "it exports $others"

# NCCL that came with RTLD_LOCAL is found.
export ONEBIT_MIN_SIZE=1K ONEBIT_DEBUG=INFO
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all "$open_local" "$local_job" 2>&1) || fail "NCCL under RTLD_LOCAL: $output"
echo "$output" | grep -q ': 1 allreduces in 1 bit' || fail "NCCL under RTLD_LOCAL was not compressed: $output"
output=$(LD_PRELOAD=$shim "$open_local" "$local_job" 2>&1) || fail "passing through under RTLD_LOCAL: $output"
[ -z "$output" ] || fail "passing through says: $output"

# Or the one that is named; a wrong name is said.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_NCCL_LIBRARY=$nccl "$open_local" "$local_job" 2>&1) || fail "named NCCL: $output"
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_NCCL_LIBRARY=/nowhere "$open_local" "$local_job" 2>&1) && fail "a wrong name"
echo "$output" | grep -q 'ONEBIT_NCCL_LIBRARY=/nowhere' || fail "a wrong name is not said: $output"

# Without any NCCL a call is an error that says so.
output=$("$without_nccl" 2>&1) || fail "without NCCL: $output"
echo "$output" | grep -q 'set ONEBIT_NCCL_LIBRARY' || fail "without NCCL it says: $output"
echo "all right"
