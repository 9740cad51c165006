#!/bin/bash
# lab_test: what must be true of perf/lab.
#
#   lab_test.sh [PATH_OF_LAB]
#
# Nothing here asserts a time; it looks at settings, statuses and what is left. Exit status 77: skipped, and the line before
# says why.
set -u
here=$(cd "$(dirname "$0")" && pwd)
lab=${1:-$here/../../perf/lab}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

reason=$("$lab" -n 1 -- true 2>&1)
if [ $? -eq 3 ]; then
  echo "skipped: ${reason#lab: }"
  exit 77
fi

check() { # WHAT_MUST_BE_TRUE COMMAND...: runs the command, which must succeed
  local what=$1
  shift
  if "$@"; then echo "ok: $what"; else
    echo "FAILED: $what"
    failures=$((failures + 1))
  fi
}
equal() { [ "$1" = "$2" ] || { echo "  is '$1', must be '$2'"; false; }; }
namespaces_of() { ip netns list | grep -c "^onebit-lab-$1-"; }
within_10_s() { # COMMAND...: until it succeeds
  for _ in $(seq 100); do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}
gone() { [ "$(namespaces_of "$1")" = 0 ]; }
ended() { ! kill -0 "$1" 2>/dev/null; }
start() { # LAB'S ARGUMENTS...: in the background; sets `pid` when every host runs its command, which must touch $work/up.RANK
  rm -f "$work"/up.*
  "$lab" "$@" >"$work/output" 2>&1 &
  pid=$!
  within_10_s eval '[ "$(ls "$work" | grep -c "^up")" = 2 ]' || echo "  the lab did not start: $(cat "$work/output")"
}
export work # the ranks use it
sleeper=(sh -c 'touch "$work/up.$RANK"; echo $$ >"$work/pid.$RANK"; exec sleep 60')

# Environment and output
"$lab" -n 2 -p 2 -o "$work/out" -- sh -c \
  'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $MASTER_PORT $LAB_ADDR $LAB_INTERFACE"'
check "a lab whose ranks succeed has status 0" equal $? 0
for rank in 0 1 2 3; do
  host=$((rank / 2))
  check "rank $rank finds its place in its environment" equal "$(cat "$work/out/rank.$rank")" \
    "$rank 4 $((rank % 2)) 2 $host 10.77.0.1 29500 10.77.0.$((host + 1)) eth0"
done
check "without -o lines go to standard output behind the rank" \
  equal "$("$lab" -n 2 -- sh -c 'echo "from $RANK"' | sort | tr '\n' ' ')" "[0] from 0 [1] from 1 "

# Statuses
"$lab" -n 3 -- sh -c '[ $RANK = 0 ] && sleep 1; exit $((RANK == 1 ? 0 : RANK + 5))' 2>/dev/null
check "the status is that of the first rank to fail, in order of time" equal $? 7
"$lab" -n 2 -- sh -c '[ $RANK = 0 ] || kill -KILL $$' 2>/dev/null
check "a rank killed by signal 9 gives status 137" equal $? 137
"$lab" -n 1 -- no-such-program >/dev/null 2>&1
check "a command that does not exist gives a status that is not 0" [ $? -ne 0 ]
"$lab" -n 2 -t 0.5 -- sleep 60 2>/dev/null
check "-t stops the ranks with status 124" equal $? 124
"$lab" -n 1 >/dev/null 2>&1
check "no command is a mistake with status 2" equal $? 2
"$lab" -r fast -- true >/dev/null 2>&1
check "a rate that is none is a mistake with status 2" equal $? 2

# Nothing is left
start -n 2 -- sh -c 'touch "$work/up.$RANK"; sleep 0.2; exit 1'
wait $pid
check "a lab whose ranks fail leaves no namespace" gone $pid
for signal in TERM INT HUP; do
  # A shell without job control starts background commands with INT ignored; python's own setting of it undoes that.
  start -n 2 -- "${sleeper[@]}"
  kill -$signal $pid
  wait $pid
  check "SIG$signal ends a lab with status 128 + the signal" equal $? $((128 + $(kill -l $signal)))
  check "SIG$signal leaves no namespace" gone $pid
  check "SIG$signal leaves no process" ended "$(cat "$work/pid.1")"
done
start -n 2 -- "${sleeper[@]}"
kill -KILL $pid
wait $pid 2>/dev/null
check "the guard of a killed lab removes its namespaces" within_10_s gone $pid
check "the guard of a killed lab ends its processes" within_10_s ended "$(cat "$work/pid.1")"
start -n 2 -- "${sleeper[@]}"
for child in $(cat /proc/$pid/task/$pid/children); do
  grep -qa "perf/lab" "/proc/$child/cmdline" && kill -KILL "$child"
done
kill -KILL $pid
wait $pid 2>/dev/null
check "without lab and guard the namespaces stay" equal "$(namespaces_of $pid)" 3
"$lab" -n 1 -- true
check "the next lab removes what a killed lab and guard left" gone $pid
check "the next lab ends what a killed lab and guard left" within_10_s ended "$(cat "$work/pid.1")"

# Links
start -n 2 -r 300mbit -- "${sleeper[@]}"
for where in "onebit-lab-$pid-1 eth0" "onebit-lab-$pid-hub h1"; do
  read -r name device <<<"$where"
  setting=$(tc -n "$name" qdisc show dev "$device")
  check "-r sets a token bucket of that rate on $device" grep -q "qdisc tbf .* rate 300Mbit " <<<"$setting"
done
other=$("$lab" -n 2 -- sh -c 'echo "$LAB_NAMESPACE"')
check "a second lab runs beside the first" equal "$(grep -c onebit-lab- <<<"$other")" 2
check "a second lab does not touch the first" equal "$(namespaces_of $pid)" 3
kill -TERM $pid
wait $pid
start -n 2 -r 300mbit -f 100mbit -- "${sleeper[@]}"
check "-f limits each connection that a host sends by, in 64 classes" equal "$(tc -n "onebit-lab-$pid-1" class show dev eth0 | grep -c "rate 100Mbit ")" 64
check "with -f, -r limits what a host receives" grep -q "qdisc tbf .* rate 300Mbit " <<<"$(tc -n "onebit-lab-$pid-hub" qdisc show dev h1)"
kill -TERM $pid
wait $pid
"$lab" -n 1 -f fast -- true >/dev/null 2>&1
check "a rate of a connection that is none is a mistake with status 2" equal $? 2
start -n 2 -- sh -c 'tc qdisc show dev eth0 >"$work/qdisc.$RANK"; touch "$work/up.$RANK"'
wait $pid
check "without -r nothing is shaped" eval '! grep -q tbf "$work/qdisc.0"'

cat >"$work/move.py" <<'PYTHON'
# Rank 1 sends 10,000,000 bytes to rank 0.
import os, socket, time
if os.environ["RANK"] == "0":
    with socket.create_server((os.environ["LAB_ADDR"], int(os.environ["MASTER_PORT"]))) as server:
        connection, address = server.accept()
        total = 0
        while data := connection.recv(1 << 20):
            total += len(data)
        print("moved", total, address[0])
else:
    for _ in range(100):
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as connection:
                connection.sendall(bytes(10_000_000))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
PYTHON
"$lab" -n 2 -r 1gbit -d -- python3 "$work/move.py" >"$work/moved"
check "hosts reach each other by their addresses" grep -q "^\[0\] moved 10000000 10.77.0.2$" "$work/moved"
sent=$(awk '$1 == "host" && $2 == 1 { print $4 }' "$work/moved")
received=$(awk '$1 == "host" && $2 == 0 { print $6 }' "$work/moved")
check "-d reports what a host sent" [ "$sent" -gt 10000000 -a "$sent" -lt 10800000 ]
check "-d reports what a host received" [ "$received" -gt 10000000 -a "$received" -lt 10800000 ]

# Hosts that stay up
"$lab" -n 2 -k >"$work/kept" &
pid=$!
within_10_s grep -q ready "$work/kept"
check "-k prints each host's namespace and address" equal "$(sed -n 2p "$work/kept")" \
  "host 1 onebit-lab-$pid-1 10.77.0.2"
check "-k keeps the hosts for commands from outside" ip netns exec "onebit-lab-$pid-1" true
kill -TERM $pid
wait $pid 2>/dev/null
check "-k leaves no namespace either" gone $pid

[ $failures = 0 ] || echo "$failures failed"
[ $failures = 0 ]
