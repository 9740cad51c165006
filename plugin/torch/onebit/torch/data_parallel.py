"""DistributedDataParallel beside an optimizer that exchanges momenta itself: the gradients must not be reduced as well.

DDP is left in place (it gives all ranks the same parameters and buffers), but its gradients stay each rank's own: a
communication hook hands every bucket back as it is. Found by looking through the objects of the process, which takes
milliseconds and is done when an optimizer is made and in its first step.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any, Iterable, List

import torch
import torch.distributed as dist
from onebit.errors import Code, OneBitError
from onebit.torch import cuda

_local: "weakref.WeakSet[Any]" = weakref.WeakSet()  # DDP modules whose gradients stay local


def _keep_local(state, bucket):  # type: ignore[no-untyped-def]
    """A communication hook that communicates nothing. Without annotations: DDP would compare them with its own."""
    done = cuda.future_of(bucket.buffer())
    done.set_result(bucket.buffer())
    return done


def keep_gradients_local(model: Any) -> None:
    """Makes DistributedDataParallel leave each rank its own gradients, for an optimizer that exchanges them itself.

    The optimizers of this package do so for the models that they find; a model wrapped after its optimizer was made
    needs this call, before its first backward.

    Raises:
        OneBitError: INVALID_USAGE when the model already has a communication hook.
    """
    if model in _local:
        return
    try:
        model.register_comm_hook(None, _keep_local)
    except RuntimeError as error:
        raise OneBitError(
            Code.INVALID_USAGE,
            f"DistributedDataParallel would reduce the gradients beside the optimizer, and its hook cannot be set: {error}. "
            "Register no communication hook for an optimizer of onebit",
        ) from error
    _local.add(model)


def wrapping_models(parameters: Iterable[torch.Tensor]) -> List[Any]:
    """The DistributedDataParallel modules of this process that reduce any of `parameters`."""
    wanted = {id(each) for each in parameters}
    return [
        each
        for each in _instances(torch.nn.parallel.DistributedDataParallel)
        if any(id(parameter) in wanted for parameter in each.parameters())
    ]


def find_optimizers(parameters: Iterable[torch.Tensor]) -> List[torch.optim.Optimizer]:
    """The optimizers of this process that step any of `parameters`."""
    wanted = {id(each) for each in parameters}
    return [
        each
        for each in _instances(torch.optim.Optimizer)
        if any(id(parameter) in wanted for group in each.param_groups for parameter in group["params"])
    ]


def _instances(kind: Any) -> List[Any]:
    # type(), not isinstance(): the latter asks proxies, which may do anything.
    return [each for each in gc.get_objects() if issubclass(type(each), kind) and hasattr(each, "__dict__")]


def take_over(parameters: Iterable[torch.Tensor]) -> None:
    """Makes all models that wrap `parameters` leave their gradients local."""
    if dist.is_available():
        for model in wrapping_models(parameters):
            keep_gradients_local(model)


def warn_of_others(parameters: Iterable[torch.Tensor], own: type) -> None:
    """Warns where an optimizer that is no `own` steps other parameters of a model whose gradients stay local."""
    for model in wrapping_models(parameters) if dist.is_available() else []:
        for each in find_optimizers(model.parameters()):
            if not isinstance(each, own):
                warnings.warn(
                    f"{type(each).__name__} steps parameters of the same DistributedDataParallel, whose gradients are no longer "
                    "averaged over ranks: step all of them with optimizers of onebit, or wrap the others in a model of their own",
                    stacklevel=3,
                )


def refuse_reduced(parameters: Iterable[torch.Tensor]) -> None:
    """Raises when a model that wraps `parameters` reduces gradients: it was wrapped after the optimizer was made."""
    if dist.is_available() and any(model not in _local for model in wrapping_models(parameters)):
        raise OneBitError(
            Code.INVALID_USAGE,
            "the model was wrapped in DistributedDataParallel after its optimizer was made, so the gradients were reduced in "
            "full already: make the optimizer after it, or call onebit.torch.keep_gradients_local(model) before backward",
        )
