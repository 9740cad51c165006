"""How long a training of a larger language model takes over slow links: LAMB whose gradients gloo reduces, and 1-bit LAMB.

Hosts in network namespaces (perf/lab), each with a link of 1 Gbit/s, one rank a host: four, and as many as this machine has cores, so
that each computes as a host of its own would. The times are of whole trainings, from the first step to the last, the warm-up included.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict

import tasks  # first: it makes the package findable
import arms
import torch
from onebit.communicator import Communicator, unique_id

RANKS = sorted({4, os.cpu_count() or 1} - {1}, reverse=True)
RATE = "1gbit"
STEPS = 60
LEARNING_RATE = 4e-3
WIDTH, LAYERS = 512, 8  # 25.5 million parameters
BATCH = 8  # sequences a step, of all ranks together
CONTEXT = 16  # characters of each


def rank_main() -> None:
    """One rank of one training; rank 0 prints a line of JSON. argv: gloo or onebit."""
    way, example = sys.argv[1], tasks.example
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    example.CONTEXT = CONTEXT
    learned, _ = example.read_text(None)
    model = example.LanguageModel(WIDTH, LAYERS)
    if way == "gloo":
        torch.distributed.init_process_group("gloo")
        comm = Communicator.from_unique_id(unique_id(), 0, 1)  # each rank makes the same step by itself
    else:
        comm = Communicator.from_environment()
    optimizer = arms.make(arms.by_name("LAMB" if way == "gloo" else "1-bit LAMB"), model, LEARNING_RATE, STEPS, comm)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters))
    at = 0
    for each in parameters:  # gradients are made in one buffer, which gloo reduces in one call
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    losses, begin = [], time.monotonic()
    for step in range(1, STEPS + 1):
        batch = example.sequences(learned, BATCH, step)[rank::size]
        flat.zero_()
        loss = example.loss_of(model, batch)
        loss.backward()
        if way == "gloo":
            torch.distributed.all_reduce(flat)
            flat.div_(size)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * example.rate_factor(step - 1, STEPS)
        optimizer.step()
        losses.append(float(loss.detach()))
    seconds = time.monotonic() - begin
    sent = comm.stats()["wire_bytes_sent"]
    if way == "gloo":
        # What a ring sends: gloo does not count.
        sent = STEPS * math.ceil(2 * (size - 1) / size * flat.numel() * 4)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "bytes": sent, "parameters": flat.numel(), "last_loss": losses[-1]}), flush=True)
    comm.close()


def run(way: str, ranks: int) -> Dict[str, float]:
    """What rank 0 says of a training."""
    words = [str(tasks.ROOT / "perf/lab"), "-n", str(ranks), "-r", RATE, "--", "env", "GLOO_SOCKET_IFNAME=eth0", "ONEBIT_THREADS=1",
             "OMP_NUM_THREADS=1", "/usr/bin/python3", str(Path(__file__).resolve()), way]  # fmt: skip
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if '"seconds"' in line]
    if done.returncode != 0 or not lines:
        sys.exit(f"{way}: the lab ended with status {done.returncode}")
    found: Dict[str, float] = json.loads(lines[-1])
    return found


def compare() -> None:
    """Runs both ways with each number of hosts, and prints tables."""
    for ranks in RANKS:
        gloo, ours = run("gloo", ranks), run("onebit", ranks)
        print(f"language model of {gloo['parameters'] / 1e6:.1f} million parameters, {ranks} hosts, {RATE}, {STEPS} steps, warm-up {arms.warm_up(STEPS)}")
        print("| | LAMB, fp32 by gloo | 1-bit LAMB | ratio |\n|---|---|---|---|")
        for key, unit, scale in (("seconds", "s", 1.0), ("bytes", "MiB sent by a rank", 2.0**20)):
            print(f"| {unit} | {gloo[key] / scale:.1f} | {ours[key] / scale:.1f} | {gloo[key] / ours[key]:.2f} |")
        print(flush=True)


if __name__ == "__main__":
    rank_main()
