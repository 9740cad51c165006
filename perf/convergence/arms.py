"""The optimizers that are compared: each arm is a name, its baseline, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

import torch
from onebit import AVG
from onebit.communicator import Communicator
from onebit.torch import Adam, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam

WARM_UP_PART = 0.15  # of the steps, where the freeze step is chosen by hand
# The variance must have seen enough when it is frozen, after some tens of steps here: 0.999 would take thousands.
BETAS = (0.9, 0.99)


@dataclass(frozen=True)
class Arm:
    name: str
    kind: str  # a class of onebit.torch, or "without residuals"
    freeze: Optional[str] = None  # "hand" or "auto"
    compat: bool = False
    papers: bool = False  # without bias correction and norm_factor
    main: bool = True  # is run with every number of ranks

    @property
    def family(self) -> str:
        return "lamb" if "Lamb" in self.kind else "adam"

    @property
    def baseline(self) -> str:
        return "LAMB" if self.family == "lamb" else "Adam"


ARMS: List[Arm] = [
    Arm("LAMB", "Lamb"),
    Arm("1-bit LAMB", "OneBitLamb", "hand"),
    Arm("1-bit LAMB, the paper's factor", "OneBitLamb", "hand", papers=True, main=False),
    Arm("1-bit LAMB, freeze auto", "OneBitLamb", "auto", main=False),
    Arm("1-bit LAMB, DeepSpeed's numbers", "OneBitLamb", "hand", compat=True, main=False),
    Arm("Adam", "Adam"),
    Arm("1-bit Adam", "OneBitAdam", "hand"),
    Arm("1-bit Adam, the paper's variance", "OneBitAdam", "hand", papers=True, main=False),
    Arm("1-bit Adam, freeze auto", "OneBitAdam", "auto", main=False),
    Arm("1-bit Adam, DeepSpeed's numbers", "OneBitAdam", "hand", compat=True, main=False),
    Arm("1-bit Adam without residuals", "without residuals", "hand", main=False),
    Arm("0/1 Adam", "ZeroOneAdam", "hand"),
    Arm("0/1 Adam, DeepSpeed's numbers", "ZeroOneAdam", "hand", compat=True, main=False),
]


def by_name(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def warm_up(steps: int) -> int:
    """Steps in full precision of a training of `steps`, where that is chosen by hand."""
    return max(2, round(WARM_UP_PART * steps))


class WithoutResiduals:
    """1-bit Adam whose compression errors are forgotten, to show what they are needed for. Not an optimizer to use."""

    def __init__(self, parameters: Any, lr: float, freeze_step: int, comm: Communicator) -> None:
        self.parameters = list(parameters)
        self.param_groups = [{"lr": lr}]
        self.freeze_step, self.comm, self.steps = freeze_step, comm, 0
        count = sum(each.numel() for each in self.parameters)
        self.momentum, self.variance = torch.zeros(count), torch.zeros(count)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        gradient = torch.cat([each.grad.reshape(-1) for each in self.parameters])
        if self.steps <= self.freeze_step:
            self.comm.allreduce(gradient, AVG)
            self.momentum.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            self.variance.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        else:
            self.momentum.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            self.comm.allreduce(self.momentum, AVG, tag="momentum")
            self.comm.reset_residuals("momentum")
        momentum = self.momentum / (1 - BETAS[0] ** self.steps)
        variance = self.variance / (1 - BETAS[1] ** min(self.steps, self.freeze_step))
        update = torch.where(variance > 0, momentum / (variance.sqrt() + 1e-8), torch.zeros(()))
        at = 0
        for each in self.parameters:
            each.sub_(update[at : at + each.numel()].view_as(each), alpha=self.param_groups[0]["lr"])
            at += each.numel()

    def zero_grad(self) -> None:
        for each in self.parameters:
            each.grad = None

    def info(self) -> Any:
        return _Stage(self.steps >= self.freeze_step)


@dataclass
class _Stage:
    compressed: bool


def make(arm: Arm, model: torch.nn.Module, lr: float, steps: int, comm: Communicator) -> Any:
    """The optimizer of an arm over a model's parameters."""
    freeze_step = warm_up(steps)
    if arm.kind == "without residuals":
        return WithoutResiduals(model.parameters(), lr, freeze_step, comm)
    given: Dict[str, Any] = {"lr": lr, "betas": BETAS, "comm": comm}
    if arm.kind.startswith("OneBit"):
        freeze: Union[int, str] = "auto" if arm.freeze == "auto" else freeze_step
        given["freeze_step"] = freeze
    if arm.kind == "ZeroOneAdam":
        # Updates of the variance become seldom when it has seen as many as it averages.
        averaged = round(1 / (1 - BETAS[1]))
        given.update(var_freeze_step=freeze_step, var_update_scaler=averaged, local_step_scaler=max(1, steps // 4), local_step_clipper=4)
    if arm.compat:
        given["deepspeed_compat"] = True
    if arm.papers:
        given.update(norm_factor=False, bias_correction=False)
    kinds = {"Lamb": Lamb, "OneBitLamb": OneBitLamb, "Adam": Adam, "OneBitAdam": OneBitAdam, "ZeroOneAdam": ZeroOneAdam}
    return kinds[arm.kind](model.named_parameters(), **given)
