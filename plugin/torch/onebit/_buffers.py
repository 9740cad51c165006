"""Memory that a call reads or writes: a PyTorch CPU tensor, or any object with Python's buffer protocol (array.array,
a NumPy array, a memoryview). PyTorch is not imported for this.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Dict, NamedTuple

from onebit._abi import DataType
from onebit.errors import Code, OneBitError

_FORMATS: Dict[str, DataType] = {
    "B": DataType.UINT8,
    "i": DataType.INT32,
    "l": DataType.INT64,
    "q": DataType.INT64,
    "e": DataType.FLOAT16,
    "f": DataType.FLOAT32,
    "d": DataType.FLOAT64,
}


class Memory(NamedTuple):
    """Elements in a row. `owner` keeps them alive for the time of a call."""

    address: int
    elements: int
    datatype: DataType
    owner: Any


def refuse(message: str) -> OneBitError:
    return OneBitError(Code.INVALID_ARGUMENT, message)


def datatype_of(tensor: Any) -> DataType:
    """The element type of a tensor.

    Raises:
        OneBitError: for a type that onebit does not know.
    """
    name = str(tensor.dtype).split(".")[-1]
    try:
        return DataType[name.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in DataType)
        raise refuse(f"a tensor of {name} cannot be sent; there are {known}") from None


def memory_of(values: Any) -> Memory:
    """Where the elements of `values` lie.

    Raises:
        OneBitError: for memory that is not this process's (a GPU's), not contiguous, read only, or of an unknown type.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        return _tensor_memory(values, torch)
    try:
        view = memoryview(values)
    except TypeError:
        raise refuse(f"{type(values).__name__} is neither a tensor nor does it have the buffer protocol") from None
    if view.format not in _FORMATS:
        raise refuse(f"a buffer of format {view.format!r} cannot be sent; there are {', '.join(_FORMATS)}")
    if not view.c_contiguous or view.readonly:
        raise refuse("a buffer must be contiguous and writable")
    count = view.nbytes // view.itemsize
    address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if count != 0 else 0
    return Memory(address, count, _FORMATS[view.format], view)


def _tensor_memory(tensor: Any, torch: Any) -> Memory:
    if tensor.device.type != "cpu":
        raise refuse(
            f"a tensor on {tensor.device} cannot be sent: this version of onebit reads host memory only; copy it by .cpu()"
        )
    if tensor.layout != torch.strided:
        raise refuse(f"a tensor of layout {tensor.layout} cannot be sent: make it dense by .to_dense()")
    if not tensor.is_contiguous():
        raise refuse("a tensor must be contiguous: call .contiguous()")
    return Memory(tensor.data_ptr(), tensor.numel(), datatype_of(tensor), tensor)
