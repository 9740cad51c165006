"""The VM: Debian's kernel and modules, QEMU, and the pipes through which the program's output comes back.

QEMU dies with this process, however that ends. Kernel and initramfs are handed over in memory. The processor is emulated
(TCG), without KVM: so every machine can run it, and runs the same.
"""
import ctypes
import glob
import lzma
import mmap
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import vm_guest

BOOT_LIMIT = 240  # seconds
TRANSPORT_MODULES = ["virtio_mmio", "virtio_console", "9pnet_virtio", "9p", "overlay"]
RDMA_MODULES = ["crc32_generic", "veth", "bridge", "ib_uverbs", "rdma_ucm", "rdma_rxe"]
# QEMU 7.2 says that it has VAES and computes it wrongly.
PROCESSOR = "max,la57=off,vaes=off"


class Failure(Exception):
    """The VM cannot do its work."""


def say(text):
    print(f"vm: {text}", file=sys.stderr, flush=True)


# --- what this machine has ---

def program_path(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")


def busybox_path():
    """A busybox that runs alone: an ELF file without an interpreter."""
    path = program_path("busybox")
    if path is None:
        return None
    with open(path, "rb") as file:
        head = file.read(4096)
    at, = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    interpreted = any(struct.unpack_from("<I", head, at + i * size)[0] == 3 for i in range(count))
    return None if interpreted else path


def newest_kernel():
    """(image, folder of modules) of the newest kernel with Soft-RoCE; None without one."""
    found = []
    for image in glob.glob("/boot/vmlinuz-*"):
        version = image.removeprefix("/boot/vmlinuz-")
        folder = f"/lib/modules/{version}"
        if glob.glob(f"{folder}/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*") and os.access(image, os.R_OK):
            found.append(([int(n) for n in re.findall(r"\d+", version)], image, folder))
    return max(found)[1:] if found else None


def lacking():
    """What is missing here, in words, with Debian's package."""
    wanted = (("qemu-system-x86_64", program_path("qemu-system-x86_64"), "qemu-system-x86"),
              ("a readable kernel in /boot with the module rdma_rxe", newest_kernel(), "linux-image-amd64"),
              ("a static busybox", busybox_path(), "busybox-static"),
              ("ip and rdma", program_path("ip") and program_path("rdma"), "iproute2"),
              ("the provider of libibverbs for rxe", glob.glob("/usr/lib/*/libibverbs/librxe-rdmav*.so"), "ibverbs-providers"))
    return [f"{what} (package {package})" for what, have, package in wanted if not have]


class TickMeter:
    """Measures the time stamp counter of this machine, which is also the emulated one.

    The guest's own calibration fails on a busy machine, and then it hangs."""

    def __init__(self):
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
        self.code = code
        self.read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        self.first = self.sample()

    def sample(self):
        """(nanoseconds, ticks) of one moment."""
        tries = []
        for _ in range(20):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            ticks = self.read()
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            tries.append((after - before, (after + before) // 2, ticks))
        return min(tries)[1:]

    def khz(self):
        while True:
            moment, ticks = self.sample()
            if moment - self.first[0] >= 100_000_000:
                return round((ticks - self.first[1]) * 1_000_000 / (moment - self.first[0]))
            time.sleep(0.02)


# --- kernel and modules ---

def unpacked_kernel(image):
    """The ELF file inside a bzImage, which QEMU starts directly: the emulated unpacking would take long."""
    with open(image, "rb") as file:
        data = file.read()
    setup = (data[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = setup * 512 + offset
    try:
        kernel = lzma.LZMADecompressor().decompress(data[start:start + length])
    except lzma.LZMAError as error:
        raise Failure(f"{image} is not packed with xz, as Debian's kernels are: {error}") from error
    return kernel


def module_name(path):
    return re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path)).replace("-", "_")


def modules(folder, names):
    """[(name, contents)] of these modules and of all that they need, in the order of loading."""
    depends, paths, order = {}, {}, []
    with open(f"{folder}/modules.dep", encoding="utf-8") as file:
        for line in file:
            path, _, rest = line.partition(":")
            paths[module_name(path)] = path
            depends[module_name(path)] = [module_name(p) for p in rest.split()]
    with open(f"{folder}/modules.builtin", encoding="utf-8") as file:
        builtin = {module_name(line.strip()) for line in file}

    def add(name):
        if name in order or name in builtin:
            return
        if name not in paths:
            raise Failure(f"no kernel module {name} below {folder}")
        for other in depends[name]:
            add(other)
        order.append(name)

    for name in names:
        add(name)
    made = []
    for name in order:
        with open(f"{folder}/{paths[name]}", "rb") as file:
            data = file.read()
        made.append((name, lzma.decompress(data) if paths[name].endswith(".xz") else data))
    return made


def memory_file(name, data):
    fd = os.memfd_create(name, 0)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
    return fd


# --- the machine ---

def die_with(parent):
    libc = ctypes.CDLL(None, use_errno=True)

    def apply():
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return apply


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


class Machine:
    def __init__(self, options):
        self.options = options
        self.console = b""
        self.control = b""
        self.status = None
        self.ready = False
        self.process = None
        self.channels = {}

    def start(self):
        meter = TickMeter()
        image, folder = newest_kernel()
        with open(busybox_path(), "rb") as file:
            busybox = file.read()
        transport = modules(folder, TRANSPORT_MODULES)
        rdma = [m for m in modules(folder, RDMA_MODULES) if m not in transport]
        stage2 = vm_guest.stage2(self.options.devices, program_path("ip"), program_path("rdma"))
        initramfs = memory_file("initramfs", vm_guest.initramfs(busybox, transport, rdma, stage2, self.options.program))
        kernel = memory_file("kernel", unpacked_kernel(image))
        pairs = {name: socket.socketpair() for name in ("console", "control", "stdout", "stderr")}
        errors, errors_end = os.pipe()
        theirs = {name: pair[1].fileno() for name, pair in pairs.items()}
        command = self.command(kernel, initramfs, theirs, meter.khz())
        if self.options.verbose:
            say(shlex.join(command))
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors_end, stderr=errors_end,
                                        pass_fds=[kernel, initramfs, *theirs.values()], start_new_session=True,
                                        preexec_fn=die_with(os.getpid()))
        for fd in (kernel, initramfs, errors_end):
            os.close(fd)
        for _, end in pairs.values():
            end.close()
        self.channels = {name: pair[0].detach() for name, pair in pairs.items()} | {"qemu": errors}

    def command(self, kernel, initramfs, channels, khz):
        words = ("console=ttyS0 panic=-1 oops=panic nokaslr mitigations=off tsc=reliable no_timer_check nowatchdog "
                 "rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on audit=0 apparmor=0 "
                 f"tsc_early_khz={khz} loglevel={7 if self.options.verbose else 4}")
        command = [program_path("qemu-system-x86_64"), "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
                   "-name", "onebit,debug-threads=on", "-nic", "none", "-M", "microvm,acpi=on,rtc=on,pit=on,pic=on,isa-serial=on",
                   "-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", str(self.options.cpus),
                   "-m", f"{self.options.memory}M", "-kernel", f"/proc/self/fd/{kernel}",
                   "-initrd", f"/proc/self/fd/{initramfs}", "-append", words]
        for name, fd in channels.items():
            command += ["-chardev", f"socket,id={name},fd={fd}"]
        command += ["-serial", "chardev:console", "-device", "virtio-serial-device"]
        for number, name in enumerate(("control", "stdout", "stderr"), start=1):
            command += ["-device", f"virtserialport,nr={number},chardev={name},name={name}"]
        return command + ["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
                          "-device", "virtio-9p-device,fsdev=root,mount_tag=root"]

    def serve(self):
        """Passes the program's output on; its exit status in the end."""
        selector = selectors.DefaultSelector()
        for name, fd in self.channels.items():
            selector.register(fd, selectors.EVENT_READ, name)
        boot_end = time.monotonic() + BOOT_LIMIT
        messages = b""
        while selector.get_map():
            if self.status is not None:  # said after all output was written: what is left is taken
                events = selector.select(0.05)
                if not any(key.data in ("stdout", "stderr") for key, _ in events):
                    return self.status
            else:
                events = selector.select(None if self.ready else max(0.0, boot_end - time.monotonic()))
                if not events and not self.ready:
                    raise Failure(f"the VM did not start within {BOOT_LIMIT} s")
            for key, _ in events:
                try:
                    data = os.read(key.fd, 1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)
                elif key.data in ("stdout", "stderr"):
                    write_all(1 if key.data == "stdout" else 2, data)
                elif key.data == "console":
                    self.console = (self.console + data)[-(1 << 18):]
                    if self.options.verbose:
                        write_all(2, data.replace(b"\r", b""))
                elif key.data == "qemu":
                    messages += data
                else:
                    self.take_control(data)
        raise Failure(f"the VM ended before the program did {messages.decode(errors='replace').strip()}")

    def take_control(self, data):
        *lines, self.control = (self.control + data).split(b"\n")
        for line in lines:
            if line == b"ready":
                self.ready = True
                if self.options.steady:
                    self.steady()
            elif line.startswith(b"exit "):
                self.status = int(line[5:])

    def steady(self):
        """Each virtual processor on a core of its own, and all before other work."""
        cores = sorted(os.sched_getaffinity(0))
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/comm", encoding="utf-8") as file:
                processor = re.fullmatch(r"CPU (\d+)/TCG", file.read().strip())
            try:
                os.setpriority(os.PRIO_PROCESS, int(task), -20)
                if processor:
                    os.sched_setaffinity(int(task), {cores[int(processor[1]) % len(cores)]})
            except OSError as error:
                raise Failure(f"--steady needs the right to go before other work (CAP_SYS_NICE): {error}") from error

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def explain(self, only_faults=False):
        """What the guest's kernel said that may explain a failure."""
        lines = [line for line in self.console.decode(errors="replace").replace("\r", "").split("\n") if line.strip()]
        faults = [line for line in lines if re.search(r"guest: |Out of memory: Killed|BUG: |Oops: |Kernel panic", line)]
        for line in faults or ([] if only_faults else lines[-15:]):
            say("kernel: " + line)
