"""What all optimizers of onebit are for PyTorch: a torch.optim.Optimizer over one of libonebit.so.

The exchange between ranks is part of `step`: gradients are each rank's own, and nobody else reduces them. The library's
optimizer is made in the first step (or load), from the parameters as they are then; from there on they stay where they
are in memory. Invariant: a step that raises has changed neither parameters nor state.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from onebit._buffers import refuse
from onebit._library import Text
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.optimizer import Info, NativeOptimizer, group_values, parse_section
from onebit.together import on_all_ranks, share
from onebit.torch import checkpoint, parameters
from onebit.torch.agreement import compare_ranks
from onebit.torch.binding import Binding
from onebit.torch.data_parallel import refuse_reduced, take_over, warn_of_others
from onebit.torch.group import default_communicator

live: "weakref.WeakSet[OneBitOptimizer]" = weakref.WeakSet()
"""All optimizers of the process."""

# What belongs to the optimizer as a whole: in a group it would have no effect.
_GLOBAL_KEYS = frozenset(
    "freeze_step coeff_beta factor_max factor_min factor_threshold norm_factor var_freeze_step var_update_scaler "
    "local_step_scaler local_step_clipper gradient_clipping deepspeed_compat bound_moves bias_correction".split()
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
        self._bound: Optional[Binding] = None
        self._earlier_bytes = {"full_bytes": 0, "compressed_bytes": 0, "fp32_bytes": 0}  # of bindings before this one
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
        if self._bound is None:
            self._bound = self._bind()
        bound = self._bound
        bound.check_unchanged(self.param_groups)
        gradients = bound.gradients()
        self._unscale([each for each in gradients if each is not None])
        if not self._looked:
            refuse_reduced(bound.parameters)
            warn_of_others(bound.parameters, OneBitOptimizer)
            self._looked = True
        if not self._compared:
            compare_ranks(self.comm, bound.names, bound.parameters, gradients)
            self._compared = True
        self.step_was_skipped = not bound.step(gradients, [float(group["lr"]) for group in self.param_groups])
        return loss

    def freeze(self) -> None:
        """Ends the warm-up of 1-bit LAMB or 1-bit Adam now. All ranks, between the same steps."""
        if self._bound is None:
            raise OneBitError(Code.INVALID_USAGE, "freeze before the first step: there is no variance yet")
        self._bound.native.freeze()

    # ---- what it is at ----

    def info(self) -> Info:
        """Steps taken and skipped, the stage, memory, and bytes sent."""
        if self._bound is None:
            return Info(0, 0, False, True, 0)
        now = self._bound.native.info()
        return now._replace(**{key: getattr(now, key) + earlier for key, earlier in self._earlier_bytes.items()})

    def residual_norm(self) -> Tuple[float, float]:
        """L2 norms of the residuals on this rank: of its own tensors, and of the partitions that it owns."""
        return (0.0, 0.0) if self._bound is None else self._bound.native.residual_norm()

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

    def carrier(self) -> str:
        """Whose connections carry what steps exchange: "onebit", the communicator's, whose own counters have their bytes too; or
        "nccl", on a CUDA device, whose bytes are computed from the sizes of what it is given."""
        return "onebit" if self._bound is None or self._bound.stream is None else "nccl"

    def read_state(self, parameter: torch.Tensor, name: str) -> torch.Tensor:
        """A copy of a parameter's state, fp32: exp_avg (momentum), exp_avg_sq (variance), exp_avg_sq_fresh (1-bit LAMB
        without norm_factor) or momentum_accumulator (0/1 Adam)."""
        values = torch.empty_like(parameter, device="cpu", dtype=torch.float32, memory_format=torch.preserve_format)
        if self._bound is None:
            return values.zero_().to(parameter.device)
        self._bound.native.read_state(self._bound.index(parameter), name, values.data_ptr(), values.numel())
        return values.to(parameter.device)

    def coefficient(self, parameter: torch.Tensor) -> float:
        """LAMB: what the parameter's learning rate was multiplied with in the last step; 1 for other kinds."""
        return 1.0 if self._bound is None else self._bound.native.coefficient(self._bound.index(parameter))

    # ---- checkpoints ----

    def state_dict(self) -> Dict[str, Any]:
        """Parameter groups and this rank's whole state: momentum, variance, weights, residuals. A local call.

        Written by every rank, training goes on bit for bit. Written by one rank only, it can be loaded by all of them, and
        the residuals of the others begin at 0 again. For large models `save` writes less.
        """
        packed: Dict[str, Any] = super().state_dict()
        for group in packed["param_groups"]:
            group.pop("exp_avg_mask", None)
        packed["onebit"] = None
        if self._bound is not None:
            with self._bound.in_order():
                packed["onebit"] = checkpoint.pack(self._bound.native, self.kind, self.name, self.comm)
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
        if self._bound is None:
            raise OneBitError(Code.INVALID_USAGE, "there is nothing to save before the first step")
        checkpoint.claim(self, directory)
        native = self._bound.native
        with self._bound.in_order():
            if self.comm.rank != 0:
                native.save(directory)
                return
            groups = super().state_dict()["param_groups"]
            with checkpoint.saved_groups(directory, self.name, native.info().steps, groups):
                native.save(directory)

    def load(self, directory: Text, step: Optional[int] = None) -> None:
        """Loads what the same or another number of ranks saved in `directory`; the files of all must be readable here.
        Collective: all ranks load what was saved at one moment, or none loads anything. On an error nothing has changed.

        Args:
            step: `info().steps` of the only state to load, for a script that has noted how far it was.

        Raises:
            OneBitError: DATA_ERROR naming the steps that are there: a save was cut short, or `step` is not there.
        """
        with on_all_ranks(self.comm, f"cannot load what it sees as {directory}"):
            saved, groups = checkpoint.load_groups(directory, self.name)
            if step is not None and step != saved:
                raise OneBitError(Code.DATA_ERROR, f"{directory} has the parameter groups of step {saved}, not of step {step}")

        def load(native: NativeOptimizer) -> None:
            try:
                native.load(directory, saved)
            except OneBitError as error:
                raise OneBitError(error.code, f"{error.message} (the parameter groups there are of step {saved})") from error

        self._restore(groups, load)

    def close(self) -> None:
        """Frees the library's optimizer, which cannot be used any more."""
        self.closed = True
        if self._bound is not None:
            self._bound.native.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(f"{type(self).__name__} can neither be pickled nor copied: use state_dict()")

    # ---- groups ----

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group, before the first step."""
        if self._bound is not None:
            raise OneBitError(
                Code.INVALID_USAGE, "a group cannot be added after the first step: make a new optimizer with all parameters"
            )
        group = parameters.split_names(param_group)
        misplaced = sorted(_GLOBAL_KEYS & set(group))
        if misplaced:
            raise refuse(f"{', '.join(misplaced)} cannot differ between groups: give it to the optimizer")
        super().add_param_group(group)
        number, added = len(self.param_groups) - 1, self.param_groups[-1]
        members = added["params"]
        try:
            for index, parameter in enumerate(members):
                parameters.check(parameters.name_of(added, number, index), parameter)
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

    def _bind(self) -> Binding:
        """Makes the library's optimizer of the parameters as they are."""
        stream = None if self._bound is None else self._bound.stream
        return Binding(self._config, self.name, self.param_groups, self._group_keys, self.comm, stream)

    def _restore(self, groups: List[Dict[str, Any]], load: Optional[Callable[[NativeOptimizer], None]]) -> None:
        """Takes over saved groups and, by `load`, a state; all or nothing."""
        before = [dict(group) for group in self.param_groups]
        bound = None
        weights: List[torch.Tensor] = []
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
                bound = self._bind()
                weights = bound.copy_parameters()
            bound.load(load)
        except BaseException:
            for group, old in zip(self.param_groups, before):
                group.clear()
                group.update(old)
            if bound is not None:
                bound.native.close()
                bound.write_parameters(weights)
            raise
        if self._bound is not None:
            now = self.info()
            self._earlier_bytes = {key: getattr(now, key) for key in self._earlier_bytes}
            self._bound.native.close()
        self._bound = bound
        self._compared = True  # between the syncs of 0/1 Adam ranks may have parameters of their own
        bound.mark_changed()

    def _unscale(self, gradients: List[torch.Tensor]) -> None:
        """Takes out GradScaler's scale, if it has left that to us. Each rank has a scale of its own."""
        scale = getattr(self, "grad_scale", None)
        if scale is None or not gradients:
            return
        if any(each.dtype == torch.float16 for each in gradients):
            raise refuse("fp16 gradients cannot be unscaled without loss: keep fp32 parameters and use autocast")
        torch._foreach_mul_(gradients, 1.0 / float(scale))
