"""One rank of the comparison: trains every arm in turn over one communicator, and rank 0 writes down how it went."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, List, Optional

import arms
import onebit
import tasks
import torch
from onebit.communicator import Communicator
from tqdm import tqdm


@dataclass
class Run:
    """How one training went; one line of JSON each in the file of results."""

    task: str
    arm: str
    ranks: int
    seed: int
    losses: List[float]  # of each step, the mean over ranks, before the step
    bytes: List[int]  # that rank 0 has sent up to the end of each step
    test_loss: float  # of the mean of all ranks' weights
    compressed_from: Optional[int]  # the first step of the compressed stage

    def final_loss(self) -> float:
        """The mean of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def read(file: Path) -> List[Run]:
    return [Run(**json.loads(line)) for line in file.read_text().splitlines()]


def train(task: Any, arm: arms.Arm, seed: int, steps: int, rate: float, comm: Communicator, bar: Any) -> Run:
    torch.manual_seed(seed)  # the same model on all ranks
    model = task.model()
    optimizer = arms.make(arm, model, rate, steps, comm)
    run = Run(task.name, arm.name, comm.size, seed, [], [], 0.0, None)
    before = comm.stats()["wire_bytes_sent"]
    own_losses = torch.zeros(steps)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * tasks.example.rate_factor(step - 1, steps)
        batch = task.batch(seed, step)[comm.rank :: comm.size]
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        run.bytes.append(comm.stats()["wire_bytes_sent"] - before)
        if run.compressed_from is None and arm.freeze and optimizer.info().compressed:
            run.compressed_from = step + 1
        own_losses[step - 1] = loss.detach()
        bar.update()
    comm.allreduce(own_losses, onebit.AVG)
    run.losses = own_losses.tolist()
    with torch.no_grad():
        for parameter in model.parameters():  # 0/1 Adam's ranks are apart between syncs
            comm.allreduce(parameter.data.view(-1), onebit.AVG)
        run.test_loss = task.test(model.eval())
    if isinstance(optimizer, onebit.torch.OneBitOptimizer):
        optimizer.close()
    return run


def rank_main(
    chosen: List[str], arm_names: List[str], seeds: List[int], steps: Optional[int], rate_factor: float, results: Path
) -> None:
    """Trains all combinations, each for `steps` or what suits the task, at the task's rate times `rate_factor`.

    RANK, WORLD_SIZE and so on are set. Rank 0 appends to `results` as runs end.
    """
    torch.set_num_threads(1)
    with Communicator.from_environment("convergence", {"ONEBIT_MIN_SIZE": 0}) as comm:
        made = [kind() for kind in tasks.TASKS if kind.name in chosen]
        plan = [(task, arms.by_name(name), seed) for task in made for name in arm_names for seed in seeds]
        total = sum(steps or task.steps for task, _, _ in plan)
        with tqdm(total=total, disable=comm.rank != 0, unit="step", mininterval=1) as bar:
            for task, arm, seed in plan:
                bar.set_description(f"{comm.size} ranks, {task.name}, {arm.name}, seed {seed}")
                run = train(task, arm, seed, steps or task.steps, rate_factor * task.rates[arm.family], comm, bar)
                if comm.rank == 0:
                    with results.open("a") as file:
                        file.write(json.dumps(asdict(run)) + "\n")
