#!/usr/bin/env python3
"""Checks what nvcc makes of the codec's CUDA kernels: vector width, registers, spills.

usage: check_compiled.py NVCC INCLUDES ARCHITECTURE SOURCE...

INCLUDES: folders with ';' between. For each source: compiles it to PTX and counts, in every kernel, the accesses of
global memory by their width; assembles that for ARCHITECTURE (as sm_90) and reads registers, stack and spills. Fails
when a kernel has not all its accesses of full rows in 16 bytes, spills, or uses more registers than
its launch bounds leave for two blocks a multiprocessor (four rows and more of a large block: for one).
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

# 16-byte loads and stores that a row takes at least, by a part of the kernel's name: a 4-byte type takes two a thread, a
# 2-byte type one.
WIDE = [
    ("decode_tiles", lambda name: (0, 2 if "<float>" in name else 1)),
    ("reduce_rows", lambda name: (0, wide(name))),
    ("quantize_tiles", lambda name: (wide(name), wide_error(name))),
    ("sum_sub_blocks<onebit::codec::cuda::Compensated", lambda name: (wide(name), 0)),
    ("sum_sub_blocks<onebit::codec::cuda::Averaged", lambda name: (wide(name), 2)),
    ("code_small_blocks", lambda name: (wide(name), wide_error(name))),
    ("code_large_blocks", lambda name: (wide(name), wide_error(name))),
]


def types_of(name):
    return re.findall(r"float|__half|__nv_bfloat16", name)


def wide(name):
    return sum(2 if one == "float" else 1 for one in types_of(name))


def wide_error(name):
    return 2 if types_of(name)[-1] == "float" else 1


def rows_of(name):
    """Rows that a thread has of a unit."""
    if match := re.search(r"(\d+)u>", name):
        return int(match[1])
    return {"quantize_tiles": 4}.get(name.split("<")[0].split("::")[-1], 8)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout + done.stderr


def demangled(names):
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, lines.splitlines()))


def accesses(ptx):
    """Of each kernel: how many global loads and stores it has, by bytes."""
    kernels = {}
    for name, body in re.findall(r"\.entry\s+(\w+)\(.*?\)[^{]*?\n\{(.*?)\n\}", ptx, re.S):
        counts = collections.Counter()
        for kind, vector, bits in re.findall(r"\b(ld|st)\.global[\w.]*?(?:\.v(\d))?\.[bufs](\d+)\b", body):
            counts[kind, int(vector or 1) * int(bits) // 8] += 1
        kernels[name] = counts
    return kernels


def resources(log):
    """Of each kernel: registers and bytes of stack and spills, from ptxas -v."""
    found, name, local = {}, None, 0
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            local = sum(map(int, match.groups()))
        elif match := re.search(r"Used (\d+) registers", line):
            found[name] = (int(match[1]), local)
    return found


def main():
    nvcc, includes, architecture, *sources = sys.argv[1:]
    faults = 0
    for source in sources:
        with tempfile.TemporaryDirectory() as folder:
            ptx, cubin = os.path.join(folder, "kernels.ptx"), os.path.join(folder, "kernels.cubin")
            flags = ["-I" + include for include in includes.split(";")]
            virtual = architecture.replace("sm_", "compute_")
            run(nvcc, "-std=c++20", "-O3", "-ptx", "-arch=" + virtual, *flags, source, "-o", ptx)
            ptxas = os.path.join(os.path.dirname(nvcc), "ptxas")
            used = resources(run(ptxas, "-v", "-arch=" + architecture, ptx, "-o", cubin))
            with open(ptx, encoding="utf-8") as file:
                moved = accesses(file.read())
        names = demangled(list(moved))
        for kernel, counts in sorted(moved.items(), key=lambda item: names[item[0]]):
            name = re.sub(r"^void |\(.*", "", names[kernel])
            short = name.replace("onebit::codec::cuda::", "").replace("__nv_", "")
            registers, local = used[kernel]
            loads, stores = counts["ld", 16], counts["st", 16]
            print("%-52s %3d registers, %d bytes of local memory, %d loads and %d stores of 16 bytes"
                  % (short, registers, local, loads, stores))
            a_row = next((need(name) for part, need in WIDE if part in name), (0, 0))
            need = tuple(rows_of(name) * count for count in a_row)
            most = 255 if "code_large_blocks" in name and rows_of(name) >= 4 else 128
            if local or registers > most or loads < need[0] or stores < need[1]:
                print("  FAULT: wanted no local memory, at most %d registers, %d loads and %d stores" % (most, *need))
                faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
