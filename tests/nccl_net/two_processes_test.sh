#!/bin/bash
# two_processes_test: two processes drive the net plugin, on this machine's loopback and in two network namespaces.
#
#   two_processes_test.sh NET_PLUGIN_PERF LIBRARY LAB
#
# Every version of the API, sizes with and without a remainder, one flow and several; each message is checked by the
# receiver. Nothing asserts a time. The namespaces need root and iproute2; where they cannot be made the test says so and
# ends with 77, after the loopback part.
set -u
perf=$1
library=$2
lab=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
options=(--library "$library" --sizes 2,1003,64K,1048577 --pings 50 --seconds 0.1)

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
complete() { # JSON: it has a row for each size
  python3 - "$1" <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))["results"]
names = {"size", "flows", "latency_us", "bandwidth_gbps", "cpu_s_per_gb"}
sys.exit(len(rows) != 4 or any(not names <= row.keys() or row["latency_us"] <= 0 for row in rows))
END
}

# The first port from $1 on that is free, below those that the kernel gives to connections.
free_port() {
  python3 - "$1" <<'END'
import socket, sys
for port in range(int(sys.argv[1]), 32000):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            continue
    print(port)
    break
END
}

port=$((10000 + $$ % 20000))
for api in 6 7 8 9 10 11 12; do
  flows=$((1 + api % 3))
  port=$(free_port $((port + 1)))
  export NCCL_SOCKET_IFNAME==lo
  "$perf" --listen "$port" "${options[@]}" --api "$api" --flows "$flows" 2>"$work/log" &
  "$perf" --connect "127.0.0.1:$port" "${options[@]}" --api "$api" --flows "$flows" --json "$work/json" >/dev/null 2>>"$work/log" ||
    fail "API v$api, $flows flows, the sender: $(cat "$work/log")"
  wait $! || fail "API v$api, $flows flows, the receiver: $(cat "$work/log")"
  complete "$work/json" || fail "API v$api: the results are not complete: $(cat "$work/json")"
  rm -f "$work/json"
done
[ $failures -eq 0 ] && echo "ok: seven versions between two processes"

unset NCCL_SOCKET_IFNAME
reason=$("$lab" -n 1 -- true 2>&1)
if [ $? -eq 3 ]; then
  [ $failures -eq 0 ] || exit 1
  echo "skipped: the namespaces: ${reason#lab: }"
  exit 77
fi
export perf work
export words="${options[*]}"
"$lab" -n 2 -r 1gbit -t 60 -- bash -c '
  if [ "$RANK" = 0 ]; then exec "$perf" --listen 5301 $words --flows 2; fi
  exec "$perf" --connect "$MASTER_ADDR:5301" $words --flows 2 --json "$work/json"' >"$work/log" 2>&1 ||
  fail "two namespaces: $(cat "$work/log")"
complete "$work/json" || fail "two namespaces: the results are not complete: $(cat "$work/log")"
[ $failures -eq 0 ] && echo "ok: two namespaces"
[ $failures -eq 0 ]
