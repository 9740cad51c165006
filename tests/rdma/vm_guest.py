"""What runs in the VM before the program: the initramfs, and the scripts that set the RDMA devices up.

The host's files are mounted read-only through 9p, below an overlay whose upper layer is the VM's memory. Two RDMA
devices in one network namespace would reach each other through the loopback interface; routes and ARP are set so
that their packets take the wire. All is made in memory, nothing on the host is changed.
"""
import os
import re
import resource
import shlex
import stat

APPLETS = "sh mount umount mkdir insmod cat echo sleep reboot switch_root cp ln setsid kill sync hostname seq mkfifo".split()
SHELL_OWN = ("PPID", "UID", "EUID", "PWD", "OLDPWD", "_")

INIT = r"""#!/bin/sh
export PATH=/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
die() { echo "<2>guest: $*" >/dev/kmsg; sleep 0.2; reboot -f; }
for m in $(cat /modules/transport); do insmod /modules/$m.ko 2>/dev/kmsg || die "module $m cannot be loaded"; done
n=0
until mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /host 2>/error; do
  n=$((n + 1)); [ $n -lt 100 ] || die "the host's files cannot be mounted: $(cat /error)"; sleep 0.05
done
mount -t tmpfs -o size=80%,mode=755 tmpfs /over && mkdir -p /over/upper /over/work || die "no tmpfs"
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new || die "no overlay"
cd /new && mkdir -p proc sys dev run tmp || die "no root"
mount -t proc proc proc; mount -t sysfs sys sys; mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts -o ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/guest && cp -a /bin /modules /stage2 /program run/guest/ || die "/run cannot be filled"
umount /sys /proc
exec switch_root /new /run/guest/stage2
"""

STAGE2_START = r"""#!/run/guest/bin/sh
export PATH=/run/guest/bin:/usr/sbin:/usr/bin:/sbin:/bin
die() { echo "<2>guest: $*" >/dev/kmsg; sleep 0.2; reboot -f; }
must() { "$@" >/run/guest/log 2>&1 || die "'$*' failed: $(cat /run/guest/log)"; }
port() {  # sets `port` to the device of the virtio port $1
  n=0
  while :; do
    for d in /sys/class/virtio-ports/*; do
      if [ -e $d/name ] && [ "$(cat $d/name)" = "$1" ]; then port=/dev/${d##*/}; [ -c $port ] && return; fi
    done
    n=$((n + 1)); [ $n -lt 200 ] || die "no virtio port $1"; sleep 0.05
  done
}
port control
exec 9>$port || die "no control port"
for f in 0:stdin 1:stdout 2:stderr; do [ -e /dev/${f#*:} ] || ln -s /proc/self/fd/${f%:*} /dev/${f#*:}; done
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
hostname rdma-vm
for m in $(cat /run/guest/modules/rdma); do must insmod /run/guest/modules/$m.ko; done
for c in all default; do
  echo 1 >/proc/sys/net/ipv4/conf/$c/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$c/rp_filter
  echo 1 >/proc/sys/net/ipv4/conf/$c/arp_ignore
  echo 0 >/proc/sys/net/ipv6/conf/$c/accept_dad
  echo 0 >/proc/sys/net/ipv6/conf/$c/accept_ra
  echo 1 >/proc/sys/net/ipv6/conf/$c/keep_addr_on_down
done
"""

STAGE2_END = r"""
port stdout; out=$port
port stderr; err=$port
mkfifo /run/guest/out /run/guest/err
setsid cat /run/guest/out >$out 2>/dev/null & relay1=$!
setsid cat /run/guest/err >$err 2>/dev/null & relay2=$!
exec 7>/run/guest/out 8>/run/guest/err
ulimit -l unlimited
ulimit -c 0
echo ready >&9
setsid /bin/sh /run/guest/program </dev/null >&7 2>&8 7>&- 8>&- 9>&- &
main=$!
wait $main
status=$?
exec 7>&- 8>&-
for d in /proc/[0-9]*; do  # what the program has left behind
  p=${d#/proc/}
  case $p in 1|$$|$relay1|$relay2) continue;; esac
  [ -n "$(cat $d/cmdline)" ] && kill -9 $p
done 2>/dev/null
wait $relay1
wait $relay2
echo "exit $status" >&9
while :; do sleep 60; done
"""


def stage2(devices, ip, rdma):
    """The script that sets up `devices` RDMA devices and runs the program."""
    numbers = range(1, devices + 1)
    mac = {i: f"02:00:00:77:00:{i:02x}" for i in numbers}
    net = ["link set lo up", "link add br0 mtu 9000 type bridge forward_delay 0 mcast_snooping 0",
           "link set br0 addrgenmode none"]
    for i in numbers:
        net += [f"link add veth{i - 1} address {mac[i]} mtu 9000 type veth peer name wire{i - 1} mtu 9000",
                f"link set wire{i - 1} addrgenmode none", f"link set wire{i - 1} master br0 up", f"link set veth{i - 1} up"]
    net.append("link set br0 up")
    for i in numbers:
        net += [f"addr add 10.77.0.{i}/24 dev veth{i - 1}", f"addr add fd77::{i}/64 dev veth{i - 1} nodad"]
        net += [f"neigh replace {address} lladdr {mac[j]} dev veth{i - 1} nud permanent"
                for j in numbers if j != i for address in (f"10.77.0.{j}", f"fd77::{j}", f"fe80::ff:fe77:{j}")]
    net6 = []
    for i in numbers:
        net6 += [f"route add fd77::{j}/128 dev veth{i - 1} table {99 + i}" for j in numbers if j != i]
        net6.append(f"rule add pref {9 + i} oif veth{i - 1} lookup {99 + i}")
    net6 += ["rule add pref 100 lookup local", "rule del pref 0"]
    lines = [STAGE2_START]
    for name, batch, family in (("net", net, ""), ("net6", net6, "-6 ")):
        lines += [f"cat >/run/guest/{name} <<'END'", *batch, "END", f"must {shlex.quote(ip)} {family}-batch /run/guest/{name}"]
    for i in range(devices):
        lines += [f"must {shlex.quote(rdma)} link add rxe{i} type rxe netdev veth{i}", "n=0",
                  f"until [ \"$(cat /sys/class/infiniband/rxe{i}/ports/1/state)\" = '4: ACTIVE' ]; do",
                  f"  n=$((n + 1)); [ $n -lt 200 ] || die 'rxe{i} does not become active'; sleep 0.05", "done"]
    return "\n".join(lines) + STAGE2_END


def program_script(program):
    """Runs the program as it would be run here: environment, folder, limit of files."""
    lines = [f"unset {name}" for name in ("PATH", "HOME", "TERM") if name not in os.environ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(os.environ.items())
              if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name not in SHELL_OWN]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lines += ["export ONEBIT_RDMA_VM=1", f"ulimit -n {files if 0 < files <= 1 << 20 else 1 << 20}",
              f"cd {shlex.quote(os.getcwd())} || exit 125", "exec " + shlex.join(program)]
    return "\n".join(lines) + "\n"


class Archive:
    """An initramfs: cpio, format "newc"."""

    def __init__(self):
        self.parts = []
        self.count = 0

    def add(self, name, mode, data=b""):
        self.count += 1
        path = name.encode() + b"\0"
        fields = (self.count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def contents(self):
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def initramfs(busybox, transport, rdma, stage2_text, program):
    """`transport` and `rdma` are lists of (name, contents) of kernel modules, in the order of loading."""
    made = Archive()
    for folder in ("bin", "dev", "proc", "sys", "modules", "host", "over", "new"):
        made.add(folder, stat.S_IFDIR | 0o755)
    made.add("dev/console", stat.S_IFCHR | 0o600)
    made.add("bin/busybox", stat.S_IFREG | 0o755, busybox)
    for applet in APPLETS:
        made.add("bin/" + applet, stat.S_IFLNK | 0o777, b"busybox")
    for name, contents in transport + rdma:
        made.add(f"modules/{name}.ko", stat.S_IFREG | 0o644, contents)
    for name, modules in (("transport", transport), ("rdma", rdma)):
        made.add(f"modules/{name}", stat.S_IFREG | 0o644, " ".join(m for m, _ in modules).encode() + b"\n")
    made.add("init", stat.S_IFREG | 0o755, INIT.encode())
    made.add("stage2", stat.S_IFREG | 0o755, stage2_text.encode())
    made.add("program", stat.S_IFREG | 0o644, os.fsencode(program_script(program)))
    return made.contents()
