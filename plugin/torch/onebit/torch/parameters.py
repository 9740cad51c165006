"""What onebit can optimise: dense floating-point tensors in host memory or on a CUDA device, read in the order in which
they lie there.

A gradient is read in place where it lies as its parameter does, else copied into that order.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any, Iterable, List, Mapping, Optional, Sequence

import torch
from onebit._abi import DataType
from onebit._buffers import refuse

_TYPES = {
    torch.float32: DataType.FLOAT32,
    torch.float16: DataType.FLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
}


def datatype_of(parameter: torch.Tensor) -> DataType:
    return _TYPES[parameter.dtype]


def name_of(group: Mapping[str, Any], number: int, index: int) -> str:
    """What messages and checkpoints call a parameter of group `number`: its name, or its place, and its shape."""
    name = group["param_names"][index] if "param_names" in group else f"{number}.{index}"
    parameter = group["params"][index]
    refuse_uninitialized(f"parameter '{name}'", parameter)
    return f"{name} {list(parameter.shape)}"


def refuse_uninitialized(what: str, tensor: torch.Tensor) -> None:
    """Raises for a tensor of a lazy module, which has neither shape nor values yet."""
    if isinstance(tensor, (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer)):
        raise refuse(
            f"{what} is of a lazy module and has no shape yet: run the model once on a batch (model(inputs)) before"
        )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory, in whatever order of dimensions (contiguous, channels_last, ...)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def check(name: str, parameter: torch.Tensor) -> None:
    """Raises an OneBitError that says why `parameter` cannot be optimised, and what to do."""
    what = f"parameter '{name}'"
    kind = type(parameter).__name__
    if kind == "DTensor":
        raise refuse(f"{what} is a DTensor: onebit needs the whole model on each rank, without FSDP or tensor parallelism")
    if parameter.layout != torch.strided:
        raise refuse(f"{what} is of layout {parameter.layout}; only dense ones can be optimised")
    if parameter.device.type == "meta":
        raise refuse(f"{what} is on the meta device: give it memory before the optimizer is made")
    if parameter.device.type not in ("cpu", "cuda"):
        raise refuse(f"{what} is on {parameter.device}: onebit optimises models in host memory and on CUDA devices")
    if parameter.is_complex():
        raise refuse(f"{what} is complex ({parameter.dtype}): optimise torch.view_as_real of it, a real parameter, instead")
    if not parameter.is_floating_point():
        raise refuse(f"{what} is of {parameter.dtype}: only floating-point parameters can be optimised; make it a buffer")
    if parameter.dtype not in _TYPES:
        raise refuse(f"{what} is of {parameter.dtype}; there are float32, float16 and bfloat16")
    if not is_dense(parameter):
        raise refuse(f"{what} is a view with gaps or overlaps (strides {tuple(parameter.stride())}): make it .contiguous()")


def refuse_shared(names: Sequence[str], parameters: Sequence[torch.Tensor]) -> None:
    """Raises where two parameters lie in the same memory, which a step would then write to twice."""
    stretches = sorted(
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), name)
        for name, each in zip(names, parameters)
        if each.numel() != 0
    )
    for (_, end, name), (begin, _, other) in zip(stretches, stretches[1:]):
        if begin < end:
            raise refuse(
                f"parameters '{name}' and '{other}' share memory: tie them by making them one parameter "
                "(b.weight = a.weight), or give one a copy of its own"
            )


def gradient_like(name: str, parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The gradient of `parameter`, lying in memory as it does; None if it has none.

    Raises:
        OneBitError: for a sparse gradient.
    """
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.layout != torch.strided:
        raise refuse(
            f"parameter '{name}' has a sparse gradient: make its module with sparse=False; the exchange is dense"
        )
    if gradient.dtype == parameter.dtype and same_order(gradient, parameter):
        return gradient
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)


def same_order(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of a shape lie in memory alike; strides of dimensions of one element mean nothing."""
    return a.is_contiguous() and b.is_contiguous() or all(
        one == other for one, other, size in zip(a.stride(), b.stride(), a.shape) if size != 1
    )


def mask_like(name: str, mask: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A mask that can be broadcast to `parameter`, as bytes that lie as its elements do."""
    try:
        wide = (mask != 0).expand(parameter.shape)
    except RuntimeError as error:
        raise refuse(
            f"exp_avg_mask of shape {tuple(mask.shape)} does not fit parameter '{name}' of shape {tuple(parameter.shape)}"
        ) from error
    return torch.empty_like(parameter, dtype=torch.uint8, memory_format=torch.preserve_format).copy_(wide)


def digest(tensor: torch.Tensor) -> int:
    """A checksum of the bytes of a dense tensor, in the order in which they lie."""
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return 0
    on_host = tensor.detach().cpu()  # itself, if it is there
    return zlib.crc32((ctypes.c_char * count).from_address(on_host.data_ptr()))


def plain_number(value: Any) -> Any:
    """A tensor of one element, or a number of NumPy's, as a number of Python's; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    return value.item() if getattr(value, "shape", None) == () else value


def named_groups(params: Iterable[Any]) -> List[Any]:
    """`params` as an optimizer of PyTorch takes them, with names where there are any: tensors, (name, tensor) pairs as
    from ``named_parameters()``, or groups of either."""
    if isinstance(params, torch.Tensor):
        raise TypeError(f"params must be an iterable of tensors or groups, not a {type(params).__name__}")
    groups = list(params)
    if not groups:
        raise ValueError("optimizer got an empty parameter list")
    return groups if isinstance(groups[0], dict) else [{"params": groups}]


def split_names(group: Any) -> Any:
    """A group whose (name, tensor) pairs have become "params" and "param_names"."""
    members = group["params"]
    if isinstance(members, (torch.Tensor, set)):
        return group
    members = list(members)
    named: List[Any] = [each for each in members if isinstance(each, tuple)]
    if not named:
        return {**group, "params": members}
    if len(named) != len(members):
        raise ValueError("either all parameters have names or none")
    return {**group, "params": [tensor for _, tensor in named], "param_names": [name for name, _ in named]}
