"""What all optimizers of onebit are for PyTorch: a torch.optim.Optimizer over one of libonebit.so.

The exchange between ranks is part of `step`: gradients are each rank's own, and nobody else reduces them. The library's
optimizer is made in the first step (or load), from the parameters as they are then; from there on they stay where they
are in memory. Invariant: a step that raises has changed neither parameters nor state.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from onebit import _abi
from onebit._buffers import refuse
from onebit._library import Text
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.optimizer import Info, NativeOptimizer, TensorSpec, group_values, parse_section
from onebit.together import on_all_ranks, share
from onebit.torch import checkpoint, cuda, parameters
from onebit.torch.agreement import compare_ranks
from onebit.torch.data_parallel import refuse_reduced, take_over, warn_of_others
from onebit.torch.group import default_communicator

live: "weakref.WeakSet[OneBitOptimizer]" = weakref.WeakSet()
"""All optimizers of the process."""

# What belongs to the optimizer as a whole: in a group it would have no effect.
_GLOBAL_KEYS = frozenset(
    "freeze_step coeff_beta factor_max factor_min factor_threshold var_freeze_step var_update_scaler local_step_scaler "
    "local_step_clipper gradient_clipping deepspeed_compat bound_moves bias_correction".split()
)


class OneBitOptimizer(torch.optim.Optimizer):
    """The base of `OneBitLamb`, `OneBitAdam`, `ZeroOneAdam`, `Lamb` and `Adam`. Not to be made itself."""

    kind = ""
    """The type in a DeepSpeed section."""

    # GradScaler: step() unscales by itself, and skips on all ranks together.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        section: Mapping[str, Any],
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
    ) -> None:
        """Collective where `comm` is not given and no communicator was made yet.

        Args:
            params: tensors, (name, tensor) pairs, or groups of either, as PyTorch's optimizers take them. Names make
                messages and checkpoints clearer.
            section: hyper-parameters by DeepSpeed's names.
            comm: whose ranks train together; by default all of the job.
            name: in messages and file names; must differ where two optimizers save to one directory.

        Raises:
            OneBitError: INVALID_ARGUMENT for a hyper-parameter or a parameter, saying what to do.
        """
        if not name or "\0" in name:
            raise refuse(f"name is {name!r}: an optimizer's name is a text of some characters, without a NUL")
        self._config = parse_section({"type": self.kind, "params": dict(section)})
        values = group_values(self._config.group)
        self._group_keys = ["lr", "betas", "eps", "weight_decay"]
        defaults: Dict[str, Any] = {
            "lr": values["lr"],
            "betas": (values["beta1"], values["beta2"]),
            "eps": values["eps"],
            "weight_decay": values["weight_decay"],
        }
        if self.kind in ("OneBitLamb", "Lamb"):
            self._group_keys += ["max_coeff", "min_coeff"]
            defaults.update(max_coeff=values["max_coeff"], min_coeff=values["min_coeff"])
        self.name = name
        self.comm = comm or default_communicator()
        self.step_was_skipped = False
        """Whether the last step changed nothing, as some rank had a gradient that is not finite."""
        self.closed = False
        self._native: Optional[NativeOptimizer] = None
        self._stepped: List[torch.Tensor] = []  # the parameters that the library's optimizer has, in its order
        self._names: List[str] = []
        self._addresses: List[int] = []
        self._masks: List[torch.Tensor] = []
        self._stream: Optional[cuda.Stream] = None  # of parameters on a CUDA device
        self._hyper: List[Dict[str, Any]] = []  # of each group, when the library's optimizer was made
        self._frozen_out: List[torch.Tensor] = []  # parameters that needed no gradient then
        self._looked = False  # for models that reduce gradients
        self._compared = False  # with the other ranks
        super().__init__(parameters.named_groups(params), defaults)
        take_over(self._all_parameters())
        live.add(self)

    # ---- stepping ----

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step of all ranks together. Collective.

        Each rank's own gradients are averaged by the optimizer, in 1 bit in the compressed stage. A parameter without a
        gradient counts as one of zeros. If some rank has a gradient that is not finite, all ranks skip the step
        (`step_was_skipped`).

        Args:
            closure: evaluates the model again and returns the loss.

        Returns:
            The closure's loss.

        Raises:
            OneBitError: parameters and state are those before the step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        native = self._native or self._create()
        self._check_unchanged()
        gradients = [parameters.gradient_like(name, each) for name, each in zip(self._names, self._stepped)]
        self._unscale([each for each in gradients if each is not None])
        if not self._looked:
            refuse_reduced(self._stepped)
            warn_of_others(self._stepped, OneBitOptimizer)
            self._looked = True
        if not self._compared:
            compare_ranks(self.comm, self._names, self._stepped, gradients)
            self._compared = True
        addresses = [None if each is None else each.data_ptr() for each in gradients]
        with contextlib.nullcontext() if self._stream is None else self._stream.in_order():
            self.step_was_skipped = not native.step(addresses, [float(group["lr"]) for group in self.param_groups])
        if not self.step_was_skipped:
            _mark_changed(self._stepped)
        return loss

    def freeze(self) -> None:
        """Ends the warm-up of 1-bit LAMB or 1-bit Adam now. All ranks, between the same steps."""
        if self._native is None:
            raise OneBitError(Code.INVALID_USAGE, "freeze before the first step: there is no variance yet")
        self._native.freeze()

    # ---- what it is at ----

    def info(self) -> Info:
        """Steps taken and skipped, the stage, and memory."""
        return Info(0, 0, False, True, 0) if self._native is None else self._native.info()

    def residual_norm(self) -> Tuple[float, float]:
        """L2 norms of the residuals on this rank: of its own tensors, and of the partitions that it owns."""
        return (0.0, 0.0) if self._native is None else self._native.residual_norm()

    def decision(self) -> str:
        """How steps are exchanged now, and why."""
        if self.comm.size == 1:
            return "no exchange: there is one rank"
        if self.kind in ("Adam", "Lamb"):
            return f"exact: {self.kind} exchanges gradients in full precision"
        if self.kind == "ZeroOneAdam":
            until = f"var_freeze_step {self._config.var_freeze_step}"
            return f"1bit, local steps between syncs: past {until}" if self.info().compressed else f"1bit and exact until {until}"
        if self.info().compressed:
            return "1bit: the variance is frozen"
        if self._config.freeze_step < 0:
            return "exact: warm-up, until the variance is stable (freeze_step auto)"
        return f"exact: warm-up, until freeze_step {self._config.freeze_step}"

    def read_state(self, parameter: torch.Tensor, name: str) -> torch.Tensor:
        """A copy of a parameter's state, fp32: exp_avg (momentum), exp_avg_sq (variance), exp_avg_sq_fresh (1-bit LAMB)
        or momentum_accumulator (0/1 Adam)."""
        values = torch.empty_like(parameter, device="cpu", dtype=torch.float32, memory_format=torch.preserve_format)
        if self._native is None:
            return values.zero_().to(parameter.device)
        self._native.read_state(self._index(parameter), name, values.data_ptr(), values.numel())
        return values.to(parameter.device)

    def coefficient(self, parameter: torch.Tensor) -> float:
        """LAMB: what the parameter's learning rate was multiplied with in the last step; 1 for other kinds."""
        return 1.0 if self._native is None else self._native.coefficient(self._index(parameter))

    # ---- checkpoints ----

    def state_dict(self) -> Dict[str, Any]:
        """Parameter groups and this rank's whole state: momentum, variance, weights, residuals. A local call.

        Written by every rank, training goes on bit for bit. Written by one rank only, it can be loaded by all of them, and
        the residuals of the others begin at 0 again. For large models `save` writes less.
        """
        packed: Dict[str, Any] = super().state_dict()
        for group in packed["param_groups"]:
            group.pop("exp_avg_mask", None)
        packed["onebit"] = None if self._native is None else checkpoint.pack(self._native, self.kind, self.name, self.comm)
        return packed

    def load_state_dict(self, state_dict: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]) -> None:
        """Sets groups, parameters and state to what was saved. Collective: all ranks load, or none does.

        Args:
            state_dict: of this rank, of one rank for all, or a list of those of all old ranks; that is how another number
                of ranks inherits all residuals.

        Raises:
            OneBitError: DATA_ERROR naming what does not fit, or the rank that could not load. Nothing has changed then.
            ValueError: the groups are not those of this optimizer. Nothing has changed then.
        """
        with on_all_ranks(self.comm, "cannot load its state_dict"):
            parts = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
            if not parts:
                raise ValueError("load_state_dict was given an empty list")
            states = checkpoint.check(parts, self.kind, self.comm)
        if len(set(share(self.comm, 1 if states else 0))) > 1:
            raise OneBitError(
                Code.DATA_ERROR, "some ranks' state_dicts were saved before the first step, others' after it; no rank loads any"
            )

        def load(native: NativeOptimizer) -> None:
            checkpoint.unpack(native, self.name, states, self.comm)

        self._restore(parts[0]["param_groups"], load if states else None)

    def save(self, directory: Text) -> None:
        """Saves this rank's shard of the state to `directory` (made if missing). A local call, after the same step on
        every rank. Works after a failure of the communicator too.

        All ranks together write the state once, and each its residuals; rank 0 also the parameter groups.
        """
        if self._native is None:
            raise OneBitError(Code.INVALID_USAGE, "there is nothing to save before the first step")
        checkpoint.claim(self, directory)
        if self.comm.rank != 0:
            self._native.save(directory)
            return
        groups = super().state_dict()["param_groups"]
        with checkpoint.saved_groups(directory, self.name, self._native.info().steps, groups):
            self._native.save(directory)

    def load(self, directory: Text) -> None:
        """Loads the newest that the same or another number of ranks saved in `directory`; the files of all must be readable
        here. Collective: all ranks load what was saved at one moment, or none loads anything. On an error nothing has changed."""
        with on_all_ranks(self.comm, f"cannot load what it sees as {directory}"):
            steps, groups = checkpoint.load_groups(directory, self.name)

        def load(native: NativeOptimizer) -> None:
            native.load(directory)
            with on_all_ranks(self.comm, f"has groups of another step than the state in {directory}"):
                if native.info().steps != steps:
                    raise OneBitError(
                        Code.DATA_ERROR,
                        f"{directory}: the state is of step {native.info().steps}, the parameter groups are of step {steps}",
                    )

        self._restore(groups, load)

    def close(self) -> None:
        """Frees the library's optimizer, which cannot be used any more."""
        self.closed = True
        if self._native is not None:
            self._native.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(f"{type(self).__name__} can neither be pickled nor copied: use state_dict()")

    # ---- groups ----

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group, before the first step."""
        if self._native is not None:
            raise OneBitError(
                Code.INVALID_USAGE, "a group cannot be added after the first step: make a new optimizer with all parameters"
            )
        group = parameters.split_names(param_group)
        misplaced = sorted(_GLOBAL_KEYS & set(group))
        if misplaced:
            raise refuse(f"{', '.join(misplaced)} cannot differ between groups: give it to the optimizer")
        super().add_param_group(group)
        number = len(self.param_groups) - 1
        members = self.param_groups[number]["params"]
        try:
            for index, parameter in enumerate(members):
                parameters.check(self._name_of(number, index), parameter)
            if len({id(each) for each in members}) != len(members):
                raise ValueError("a parameter appears twice in a group")
            if self in live:  # the constructor looks once for all groups
                take_over(members)
        except Exception:
            self.param_groups.pop()
            raise

    # ---- within ----

    def _all_parameters(self) -> List[torch.Tensor]:
        return [each for group in self.param_groups for each in group["params"]]

    def _name_of(self, group: int, index: int) -> str:
        members = self.param_groups[group]
        name = members["param_names"][index] if "param_names" in members else f"{group}.{index}"
        return f"{name} {list(members['params'][index].shape)}"

    def _index(self, parameter: torch.Tensor) -> int:
        for index, each in enumerate(self._stepped):
            if each is parameter:
                return index
        raise refuse("the tensor is no parameter of this optimizer, or needed no gradient in the first step")

    def _create(self) -> NativeOptimizer:
        """Makes the library's optimizer of the parameters as they are."""
        stepped, names, masks, frozen_out, specs = [], [], [], [], []
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                name = self._name_of(number, index)
                parameters.check(name, parameter)
                if not parameter.requires_grad:
                    frozen_out.append(parameter)
                    continue
                mask = group.get("exp_avg_mask")
                if mask is not None:
                    masks.append(parameters.mask_like(name, mask, parameter))
                specs.append(
                    TensorSpec(
                        name,
                        parameter.data_ptr(),
                        parameter.numel(),
                        parameters.datatype_of(parameter),
                        number,
                        0 if mask is None else masks[-1].data_ptr(),
                    )
                )
                stepped.append(parameter)
                names.append(name)
        hyper = [{key: group[key] for key in self._group_keys} for group in self.param_groups]
        for each in hyper:
            each["betas"] = tuple(each["betas"])
        device = cuda.device_of(stepped)
        if self._stream is None and device is not None:
            self._stream = cuda.Stream(self.comm, device)
        place = None if self._stream is None else self._stream.place
        own_groups = [_group_of(each) for each in hyper]
        current: Any = contextlib.nullcontext() if device is None else torch.cuda.device(device)
        with current:
            native = NativeOptimizer(self._config, self.name, own_groups, specs, self.comm, place)
        self._native, self._stepped, self._names, self._masks = native, stepped, names, masks
        self._frozen_out, self._hyper = frozen_out, hyper
        self._addresses = [each.data_ptr() for each in stepped]
        return native

    def _restore(self, groups: List[Dict[str, Any]], load: Optional[Callable[[NativeOptimizer], None]]) -> None:
        """Takes over saved groups and, by `load`, a state; all or nothing."""
        before = [dict(group) for group in self.param_groups]
        members = self._native, self._stepped, self._names, self._masks, self._frozen_out, self._hyper, self._addresses
        packed = super().state_dict()
        packed["param_groups"] = [dict(group) for group in groups]
        masks = [group.get("exp_avg_mask") for group in self.param_groups]
        try:
            with on_all_ranks(self.comm, "cannot load its parameter groups"):
                super().load_state_dict(packed)
                for group, mask in zip(self.param_groups, masks):
                    if mask is not None:
                        group["exp_avg_mask"] = mask
            if load is None:
                return
            with on_all_ranks(self.comm, "cannot make its optimizer anew"):
                native = self._create()
            load(native)
        except BaseException:
            if self._native is not None and self._native is not members[0]:
                self._native.close()
            self._native, self._stepped, self._names, self._masks, self._frozen_out, self._hyper, self._addresses = members
            for group, old in zip(self.param_groups, before):
                group.clear()
                group.update(old)
            raise
        if members[0] is not None:
            members[0].close()
        self._compared = True  # between the syncs of 0/1 Adam ranks may have parameters of their own
        _mark_changed(self._stepped)

    def _check_unchanged(self) -> None:
        """That what the library's optimizer was made from is still so."""
        for name, parameter, address in zip(self._names, self._stepped, self._addresses):
            if parameter.data_ptr() != address:
                raise OneBitError(
                    Code.INVALID_USAGE,
                    f"parameter '{name}' has moved since the first step (by model.to(), .data = ...): make a new optimizer "
                    "and give it the state_dict of this one",
                )
        for parameter in self._frozen_out:
            if parameter.grad is not None:
                raise OneBitError(
                    Code.INVALID_USAGE,
                    "a parameter has a gradient that needed none in the first step: make a new optimizer to unfreeze it",
                )
        for number, (group, made) in enumerate(zip(self.param_groups, self._hyper)):
            for key, value in made.items():
                now = tuple(group[key]) if key == "betas" else group[key]
                if key != "lr" and now != value:
                    raise OneBitError(
                        Code.INVALID_USAGE,
                        f"{key} of group {number} has changed from {value} to {now}: only lr can change once steps "
                        "are taken (a OneCycleLR needs cycle_momentum=False)",
                    )

    def _unscale(self, gradients: List[torch.Tensor]) -> None:
        """Takes out GradScaler's scale, if it has left that to us. Each rank has a scale of its own."""
        scale = getattr(self, "grad_scale", None)
        if scale is None or not gradients:
            return
        if any(each.dtype == torch.float16 for each in gradients):
            raise refuse("fp16 gradients cannot be unscaled without loss: keep fp32 parameters and use autocast")
        torch._foreach_mul_(gradients, 1.0 / float(scale))


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


def _mark_changed(changed: List[torch.Tensor]) -> None:
    """Lets autograd know that parameters were written to, so that a stale graph is an error (PyTorch 2)."""
    increment: Any = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None:
        for each in changed:
            increment(each)


