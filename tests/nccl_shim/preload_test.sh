#!/bin/sh
# preload_test.sh SHIM OPEN_LOCAL LOCAL_JOB OTHER_JOB WITHOUT_NCCL NCCL OLD_JOB NEEDS_MISSING NET_PLUGIN: what LD_PRELOAD does to
# programs of all kinds.
net_plugin=$9 shim=$1 open_local=$2 local_job=$3 other_job=$4 without_nccl=$5 nccl=$6 old_job=$7 needs_missing=$8
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
echo "$output" | grep -q ': 1 calls in 1 bit' || fail "NCCL under RTLD_LOCAL was not compressed: $output"
output=$(LD_PRELOAD=$shim "$open_local" "$local_job" 2>&1) || fail "passing through under RTLD_LOCAL: $output"
[ -z "$output" ] || fail "passing through says: $output"

# Beside the net plugin, preloaded too, as NCCL_NET_PLUGIN=STATIC_PLUGIN wants it: both do their work.
output=$(LD_PRELOAD="$shim $net_plugin" ONEBIT_COMPRESS=all "$open_local" "$local_job" 2>&1) || fail "with the net plugin: $output"
echo "$output" | grep -q ': 1 calls in 1 bit' || fail "with the net plugin nothing was compressed: $output"
LD_PRELOAD="$shim $net_plugin" python3 -c 'import ctypes; all = ctypes.CDLL(None); all.ncclNetPlugin_v12; all.ncclAllReduce; all.onebitTagBuffer' ||
  fail "one of the two hides the other"

# Two NCCLs in one process, neither of which a global lookup finds: each communicator is its own one's.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all "$open_local" "$local_job" "$other_job" 2>&1) || fail "two NCCLs: $output"
[ "$(echo "$output" | grep -c ': 1 calls in 1 bit')" -eq 4 ] || fail "two NCCLs were not both compressed: $output"
output=$(LD_PRELOAD=$shim "$open_local" "$local_job" "$other_job" 2>&1) || fail "passing through with two NCCLs: $output"

# Or the one that is named; a wrong name is said.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_NCCL_LIBRARY=$nccl "$open_local" "$local_job" 2>&1) || fail "named NCCL: $output"
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_NCCL_LIBRARY=/nowhere "$open_local" "$local_job" 2>&1) && fail "a wrong name"
echo "$output" | grep -q 'ONEBIT_NCCL_LIBRARY=/nowhere' || fail "a wrong name is not said: $output"

# Without any NCCL a call is an error that says so.
output=$("$without_nccl" 2>&1) || fail "without NCCL: $output"
echo "$output" | grep -q 'set ONEBIT_NCCL_LIBRARY' || fail "without NCCL it says: $output"

# An NCCL that is too old works as ever, and it is said once.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all "$old_job" 2>&1) || fail "an old NCCL ($?): $output"
[ "$(echo "$output" | grep -c 'warning.*NCCL 2.6.4 has no ncclSend: compressing needs 2.7 or later')" -eq 1 ] || fail "an old NCCL: it says $output"
output=$(LD_PRELOAD=$shim "$old_job" 2>&1) && [ -z "$output" ] || fail "passing through an old NCCL: $output"

# Without CUDA no communicator is made, and what is missing is said.
output=$(LD_PRELOAD=$shim ONEBIT_COMPRESS=all ONEBIT_CUDA_LIBRARY=$needs_missing "$old_job" 2>&1)
[ $? -eq 2 ] || fail "without CUDA a communicator is made: $output"
echo "$output" | grep -q 'libonebit_shim_missing.so: cannot open shared object file' || fail "without CUDA it says: $output"
output=$(LD_PRELOAD=$shim ONEBIT_CUDA_LIBRARY=$needs_missing "$old_job" 2>&1) || fail "passing through without CUDA: $output"
echo "all right"
