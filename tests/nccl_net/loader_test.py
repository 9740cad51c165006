#!/usr/bin/env python3
"""loader_test: NCCL's own loader opens libnccl-net-onebit.so, and survives closing it.

    loader_test.py LIBRARY

Without a GPU NCCL makes no communicator and so loads no net plugin. But the loader is the one of its env plugins, which
ncclGetUniqueId starts: it opens our library with all symbols bound, finds no env plugin in it, and closes it: by its path, by its name
alone, and by a path from the working directory. For NCCL_NET_PLUGIN=STATIC_PLUGIN, where NCCL looks in what is already loaded, the
tables are found when the library was preloaded. Exit status 77: skipped, this machine has no libnccl.so.2 (of 2.28 or later, which
have env plugins).
"""

import ctypes
import os
import subprocess
import sys

CHILD = """
import ctypes
nccl = ctypes.CDLL("libnccl.so.2")
assert nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
print("mapped" if "libnccl-net-onebit" in open("/proc/self/maps").read() else "not mapped")
"""


STATIC_CHILD = """
import ctypes
everything = ctypes.CDLL(None)
print(" ".join(str(n) for n in range(1, 20) if hasattr(everything, f"ncclNetPlugin_v{n}")))
"""


def run(library, variable):
    env = dict(os.environ, NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG="INFO", NCCL_ENV_PLUGIN=variable)
    env["LD_LIBRARY_PATH"] = os.path.dirname(library) + ":" + env.get("LD_LIBRARY_PATH", "")
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, cwd=os.path.dirname(library), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def main():
    library = os.path.abspath(sys.argv[1])
    env = dict(os.environ, LD_PRELOAD=library)
    found = subprocess.run([sys.executable, "-c", STATIC_CHILD], env=env, capture_output=True, text=True, timeout=60)
    if found.stdout.split() != ["6", "7", "8", "9", "10", "11", "12"]:
        print(f"FAILED: a preloaded library's tables are not found: {found.stdout}{found.stderr}")
        return 1
    print("ok: the tables of a preloaded library are found")
    try:
        version = ctypes.c_int()
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    except OSError as error:
        print(f"skipped: {error}")
        return 77
    if version.value < 22800:
        print(f"skipped: NCCL {version.value} has no env plugins")
        return 77
    for variable in (library, os.path.basename(library), "./" + os.path.basename(library)):
        status, output = run(library, variable)
        if status != 0 or "unsupported" not in output or "not mapped" in output or "mapped" not in output:
            print(f"FAILED: NCCL_ENV_PLUGIN={variable}: status {status}\n{output}")
            return 1
        print(f"ok: NCCL {version.value} opens and closes {variable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
