"""The five optimizers, with DeepSpeed's names of arguments, and its JSON.

Arguments that DeepSpeed's classes take and that have no effect here (comm_backend_name, cuda_aware, amsgrad, ...) are
accepted with the value that says so; any other value raises and says what to do.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Type, Union

from onebit._buffers import refuse
from onebit.communicator import Communicator
from onebit.optimizer import parse_section
from onebit.torch.optimizer import OneBitOptimizer
from onebit.torch.parameters import plain_number


def _section(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The hyper-parameters among the local variables of a constructor, as JSON takes them."""
    own = {key: value for key, value in arguments.items() if key not in ("self", "params", "comm", "name", "__class__")}
    own.update(own.pop("accepted"))
    try:
        own["betas"] = [plain_number(each) for each in own["betas"]]
    except TypeError:
        raise refuse(f"betas is {own['betas']!r}; it must be two numbers") from None
    return {key: plain_number(value) for key, value in own.items()}


class Lamb(OneBitOptimizer):
    """LAMB (arXiv 1904.00962) in full precision: the baseline of `OneBitLamb`.

    Args:
        params: tensors, (name, tensor) pairs or groups.
        lr, betas, eps, weight_decay: as in PyTorch; weight decay is decoupled.
        max_coeff, min_coeff: bounds of ||w|| / ||update||.
        bias_correction: whether momentum and variance are corrected for their start at zero.
        gradient_clipping: the largest norm of the mean gradient; 0 for none.
        comm, name: see `OneBitOptimizer`.
    """

    kind = "Lamb"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        gradient_clipping: float = 0.0,
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
        **accepted: Any,
    ) -> None:
        super().__init__(params, _section(locals()), comm, name)


class Adam(OneBitOptimizer):
    """Adam with decoupled weight decay (AdamW, arXiv 1711.05101) in full precision: the baseline of `OneBitAdam`.

    Args:
        params: tensors, (name, tensor) pairs or groups.
        lr, betas, eps, weight_decay, bias_correction: as in PyTorch's AdamW.
        gradient_clipping: the largest norm of the mean gradient; 0 for none.
        comm, name: see `OneBitOptimizer`.
    """

    kind = "Adam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        bias_correction: bool = True,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gradient_clipping: float = 0.0,
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
        **accepted: Any,
    ) -> None:
        super().__init__(params, _section(locals()), comm, name)


class OneBitLamb(OneBitOptimizer):
    """1-bit LAMB (arXiv 2104.06069): LAMB in full precision for `freeze_step` steps, then one bit an element.

    Args:
        params: tensors, (name, tensor) pairs or groups. A group may have its own lr, betas, eps, weight_decay, max_coeff,
            min_coeff, and an exp_avg_mask (broadcast to each parameter: where it is 0 there is no momentum).
        lr, betas, eps, weight_decay, max_coeff, min_coeff, bias_correction: as of `Lamb`.
        freeze_step: steps of the warm-up, or "auto": until the variance has become stable.
        coeff_beta: averages the coefficients of the warm-up.
        factor_max, factor_min, factor_threshold: bounds of the factor on the frozen coefficients, and of its change a step.
        norm_factor: the factor follows ||w|| and ||momentum||, so that coefficients stay LAMB's, which is not in the paper,
            and factor_max and factor_min do not bound it; False: the paper's (docs/optimizers.md).
        gradient_clipping: the largest norm of the mean gradient, the same factor on all ranks; 0 for none.
        deepspeed_compat: DeepSpeed's numbers, with its faults (docs/optimizers.md).
        bound_moves: keeps |m/(sqrt(v)+eps)| within what Adam's can be, which is not in the papers (docs/optimizers.md).
        comm, name: see `OneBitOptimizer`.
    """

    kind = "OneBitLamb"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        freeze_step: Union[int, str] = 100000,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        coeff_beta: float = 0.9,
        factor_max: float = 4.0,
        factor_min: float = 0.5,
        factor_threshold: float = 0.1,
        norm_factor: bool = True,
        gradient_clipping: float = 0.0,
        deepspeed_compat: bool = False,
        bound_moves: bool = True,
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
        **accepted: Any,
    ) -> None:
        super().__init__(params, _section(locals()), comm, name)


class OneBitAdam(OneBitOptimizer):
    """1-bit Adam (arXiv 2102.02888): Adam in full precision for `freeze_step` steps, then one bit an element.

    Args:
        params: as of `OneBitLamb`.
        lr, betas, eps, weight_decay, bias_correction: as of `Adam`; the papers apply no bias correction.
        freeze_step: steps of the warm-up, or "auto": until the variance has become stable.
        norm_factor: the frozen variance follows the gradients' norm, which is not in the papers (docs/optimizers.md).
        gradient_clipping: the largest norm of the mean gradient, the same factor on all ranks; 0 for none.
        deepspeed_compat: DeepSpeed's numbers, with its faults (docs/optimizers.md).
        bound_moves: keeps |m/(sqrt(v)+eps)| within what Adam's can be, which is not in the papers (docs/optimizers.md).
        comm, name: see `OneBitOptimizer`.
    """

    kind = "OneBitAdam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        freeze_step: Union[int, str] = 100000,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        norm_factor: bool = True,
        gradient_clipping: float = 0.0,
        deepspeed_compat: bool = False,
        bound_moves: bool = True,
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
        **accepted: Any,
    ) -> None:
        super().__init__(params, _section(locals()), comm, name)


class ZeroOneAdam(OneBitOptimizer):
    """0/1 Adam (arXiv 2202.06009): the variance is updated ever more seldom, and once it is frozen ranks step locally
    between syncs of one bit an element.

    Between syncs each rank has parameters of its own: evaluate and save the model where ``info().in_common`` is true.

    Args:
        params: as of `OneBitLamb`.
        lr, betas, eps, weight_decay, bias_correction: as of `Adam`; the papers apply no bias correction.
        var_freeze_step: steps until the variance is frozen.
        var_update_scaler: the interval of variance updates doubles after so many of them.
        local_step_scaler: the interval of syncs doubles after so many steps.
        local_step_clipper: the largest interval of syncs.
        norm_factor: the frozen variance follows the gradients' norm, which is not in the papers (docs/optimizers.md).
        gradient_clipping: the largest norm of the mean gradient, the same factor on all ranks; 0 for none.
        deepspeed_compat: DeepSpeed's numbers, with its faults (docs/optimizers.md).
        bound_moves: keeps |m/(sqrt(v)+eps)| within what Adam's can be, which is not in the papers (docs/optimizers.md).
        comm, name: see `OneBitOptimizer`.
    """

    kind = "ZeroOneAdam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        var_freeze_step: int = 100000,
        var_update_scaler: int = 16,
        local_step_scaler: int = 32768,
        local_step_clipper: int = 16,
        norm_factor: bool = True,
        gradient_clipping: float = 0.0,
        deepspeed_compat: bool = False,
        bound_moves: bool = True,
        comm: Optional[Communicator] = None,
        name: str = "optimizer",
        **accepted: Any,
    ) -> None:
        super().__init__(params, _section(locals()), comm, name)


_KINDS: Dict[str, Type[OneBitOptimizer]] = {
    "lamb": Lamb,
    "adam": Adam,
    "adamw": Adam,
    "onebitlamb": OneBitLamb,
    "onebitadam": OneBitAdam,
    "zerooneadam": ZeroOneAdam,
}

# Sections of DeepSpeed's configuration that its engine acts on, and what does so here.
_ELSEWHERE = {
    "scheduler": "make a scheduler of torch.optim.lr_scheduler",
    "fp16": "use torch.autocast and a GradScaler",
    "bf16": "use torch.autocast, or convert the model by .bfloat16()",
    "amp": "use torch.autocast and a GradScaler",
    "gradient_accumulation_steps": "call step() every so many backwards, of losses divided by that, as DeepSpeed's engine does",
}


def from_deepspeed_config(
    params: Iterable[Any],
    config: Union[str, Path, Mapping[str, Any]],
    comm: Optional[Communicator] = None,
    name: str = "optimizer",
) -> OneBitOptimizer:
    """The optimizer that a DeepSpeed configuration asks for.

    Args:
        params: tensors, (name, tensor) pairs or groups.
        config: the whole configuration or its "optimizer" section, or the path of its JSON file. Of a whole one,
            "optimizer" and "gradient_clipping" are read.
        comm, name: see `OneBitOptimizer`.

    Raises:
        OneBitError: INVALID_ARGUMENT for a key that is unknown or would have no effect, with what to do about it.
    """
    if isinstance(config, (str, Path)):
        try:
            config = json.loads(Path(config).read_text())
        except ValueError as error:
            raise refuse(f"{config} cannot be read as JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise refuse("a DeepSpeed configuration is a JSON object")
    section = config
    if "type" not in config:
        if not isinstance(config.get("optimizer"), Mapping):
            raise refuse('the configuration has no "optimizer" section')
        section = dict(config["optimizer"])
        _check_engine(config)
        if config.get("gradient_clipping") and isinstance(section.get("params", {}), Mapping):
            section["params"] = {**section.get("params", {}), "gradient_clipping": config["gradient_clipping"]}
    parse_section(section)  # says what is wrong with it
    chosen: Any = _KINDS[str(section["type"]).lower()]
    made: OneBitOptimizer = chosen(params, comm=comm, name=name, **section.get("params", {}))
    _warn_of_batches(config, made.comm.size)
    return made


def _check_engine(config: Mapping[str, Any]) -> None:
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else zero
    if stage != 0:
        raise refuse(
            f'"zero_optimization": stage {stage}: the 1-bit optimizers need whole parameters on each rank, here as in '
            "DeepSpeed; set it to 0 or remove the section"
        )
    for key, instead in _ELSEWHERE.items():
        value = config.get(key)
        active = value.get("enabled", True) if isinstance(value, Mapping) else value not in (None, 1)
        if active:
            warnings.warn(f'"{key}" of the DeepSpeed configuration is not acted on: {instead}', stacklevel=3)


def _warn_of_batches(config: Mapping[str, Any], ranks: int) -> None:
    """Where the batch sizes ask for gradient accumulation that is not asked for by its name."""
    batch, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
    if "gradient_accumulation_steps" in config or not isinstance(batch, int) or not isinstance(micro, int) or micro < 1:
        return
    steps = batch // (micro * ranks)
    if steps > 1:
        warnings.warn(
            f'"train_batch_size" {batch} with "train_micro_batch_size_per_gpu" {micro} is {steps} backwards a step on {ranks} '
            f"ranks, which is not acted on: {_ELSEWHERE['gradient_accumulation_steps']}",
            stacklevel=3,
        )
