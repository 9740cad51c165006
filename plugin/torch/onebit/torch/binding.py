"""The library's optimizer of a PyTorch optimizer's parameters, and what it was made from.

Invariant: the parameters, where they lie, their masks, and the groups' hyper-parameters other than lr stay as they were when
it was made. `check_unchanged` finds out where a program has changed them.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence

import torch
from onebit import _abi
from onebit._buffers import refuse
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.optimizer import NativeOptimizer, TensorSpec
from onebit.torch import cuda
from onebit.torch import parameters as layout


# Errors of a step after which its ranks are out of step.
_LOST = (Code.REMOTE_ERROR, Code.TIMEOUT, Code.SYSTEM_ERROR)


class Binding:
    """Owns a `NativeOptimizer`."""

    def __init__(
        self,
        config: _abi.OptimizerConfig,
        name: str,
        groups: Sequence[Dict[str, Any]],
        keys: Sequence[str],
        comm: Communicator,
        stream: Optional[cuda.Stream],
    ) -> None:
        """Of the parameters as they are. Collective where they are on a CUDA device.

        Args:
            groups: the parameter groups; `keys` are their hyper-parameters.
            stream: of the binding before this one, which is kept.
        """
        self.parameters: List[torch.Tensor] = []
        """Those that need a gradient, in the library's order."""
        self.names: List[str] = []
        self._masks: List[torch.Tensor] = []
        self._frozen_out: Dict[str, torch.Tensor] = {}  # parameters that need no gradient
        specs = []
        for number, group in enumerate(groups):
            for index, parameter in enumerate(group["params"]):
                own_name = layout.name_of(group, number, index)
                layout.check(own_name, parameter)
                if not parameter.requires_grad:
                    self._frozen_out[own_name] = parameter
                    continue
                mask = group.get("exp_avg_mask")
                if mask is not None:
                    self._masks.append(layout.mask_like(own_name, mask, parameter))
                specs.append(
                    TensorSpec(
                        own_name,
                        parameter.data_ptr(),
                        parameter.numel(),
                        layout.datatype_of(parameter),
                        number,
                        0 if mask is None else self._masks[-1].data_ptr(),
                    )
                )
                self.parameters.append(parameter)
                self.names.append(own_name)
        layout.refuse_shared(self.names, self.parameters)
        self._addresses = [each.data_ptr() for each in self.parameters]
        self._hyper = [{key: group[key] for key in keys} for group in groups]
        for each in self._hyper:
            each["betas"] = tuple(each["betas"])
        device = cuda.device_of(self.parameters)
        self.stream = cuda.Stream(comm, device) if stream is None and device is not None else stream
        own_groups = [_group_of(each) for each in self._hyper]
        with self.in_order():
            place = None
            if self.stream is not None:
                place = self.stream.place
                cuda.free_unused_memory()
            self.native = NativeOptimizer(config, name, own_groups, specs, comm, place)

    def gradients(self) -> List[Optional[torch.Tensor]]:
        """Of each parameter, lying in memory as it does; None for one without."""
        return [layout.gradient_like(name, each) for name, each in zip(self.names, self.parameters)]

    def step(self, gradients: Sequence[Optional[torch.Tensor]], rates: Sequence[float]) -> bool:
        """See `NativeOptimizer.step`."""
        addresses = [None if each is None else each.data_ptr() for each in gradients]
        with self.in_order([each for each in gradients if each is not None]), self._ending_waits(_LOST):
            taken = self.native.step(addresses, rates)
        if taken:
            self.mark_changed()
        return taken

    def mark_changed(self) -> None:
        """Lets autograd know that the parameters were written to, so that a stale graph is an error (PyTorch 2)."""
        increment: Any = getattr(torch.autograd.graph, "increment_version", None)
        if increment is not None:
            for each in self.parameters:
                increment(each)

    def load(self, load: Callable[[NativeOptimizer], None]) -> None:
        """Collective."""
        # SYSTEM_ERROR is also that of a file.
        with self.in_order(), self._ending_waits([Code.REMOTE_ERROR, Code.TIMEOUT]):
            load(self.native)

    def in_order(self, tensors: Sequence[torch.Tensor] = ()) -> ContextManager[None]:
        """What the library does within, with `tensors`, takes its place in the order of the stream that is current now."""
        return contextlib.nullcontext() if self.stream is None else self.stream.in_order(tensors)

    def _ending_waits(self, failures: Sequence[Code]) -> ContextManager[None]:
        return contextlib.nullcontext() if self.stream is None else self.stream.ending_waits(failures)

    def copy_parameters(self) -> List[torch.Tensor]:
        """In host memory."""
        return [each.detach().to("cpu", copy=True) for each in self.parameters]

    @torch.no_grad()
    def write_parameters(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, own in zip(self.parameters, values):
            parameter.copy_(own)

    def index(self, parameter: torch.Tensor) -> int:
        """The library's number of a parameter."""
        for index, each in enumerate(self.parameters):
            if each is parameter:
                return index
        raise refuse("the tensor is no parameter of this optimizer, or needed no gradient in the first step")

    def check_unchanged(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """That what it was made from is still so.

        Raises:
            OneBitError: INVALID_USAGE naming what has changed, and what to do.
        """
        for name, parameter, address in zip(self.names, self.parameters, self._addresses):
            if parameter.data_ptr() != address:
                raise OneBitError(
                    Code.INVALID_USAGE,
                    f"parameter '{name}' has moved since the first step (by model.to(), .data = ...): make a new optimizer "
                    "and give it the state_dict of this one",
                )
            if not parameter.requires_grad:
                raise OneBitError(
                    Code.INVALID_USAGE,
                    f"parameter '{name}' was frozen (requires_grad=False) after the first step, but its momentum and decay would "
                    "still move it: make a new optimizer of the parameters that go on, or set the lr of its group to 0 instead",
                )
        for name, parameter in self._frozen_out.items():
            if parameter.grad is not None:
                raise OneBitError(
                    Code.INVALID_USAGE,
                    f"parameter '{name}' has a gradient, but needed none in the first step: make a new optimizer to unfreeze it",
                )
        for number, (group, made) in enumerate(zip(groups, self._hyper)):
            for key, value in made.items():
                now = tuple(group[key]) if key == "betas" else group[key]
                if key != "lr" and now != value:
                    raise OneBitError(
                        Code.INVALID_USAGE,
                        f"{key} of group {number} has changed from {value} to {now}: only lr can change once steps "
                        "are taken (a OneCycleLR needs cycle_momentum=False)",
                    )


def _group_of(values: Mapping[str, Any]) -> _abi.Group:
    beta1, beta2 = values["betas"]
    return _abi.Group(
        lr=float(values["lr"]),
        beta1=beta1,
        beta2=beta2,
        eps=values["eps"],
        weight_decay=values["weight_decay"],
        max_coeff=values.get("max_coeff", 10.0),
        min_coeff=values.get("min_coeff", 0.01),
    )
