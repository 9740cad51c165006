"""Where optimizers of CUDA tensors are: a stream, and NCCL over the communicator's ranks, made at the first need.

PyTorch's part of it: nothing else of the package knows torch.cuda.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterator, Optional, Sequence, Tuple

import torch
from onebit._buffers import refuse
from onebit.communicator import Communicator
from onebit.nccl import NcclCommunicator
from onebit.optimizer import Place

_made: "weakref.WeakKeyDictionary[Communicator, Tuple[torch.device, NcclCommunicator]]" = weakref.WeakKeyDictionary()


def device_of(tensors: Sequence[torch.Tensor]) -> Optional[torch.device]:
    """The CUDA device of all `tensors`; None when they are in host memory.

    Raises:
        OneBitError: for tensors of several devices.
    """
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        raise refuse(f"the parameters are on {' and '.join(devices)}: an optimizer's are on one device; make one for each")
    return tensors[0].device if devices and tensors[0].device.type == "cuda" else None


class Stream:
    """The stream that is current on a device now, where an optimizer's work goes from now on."""

    def __init__(self, comm: Communicator, device: torch.device) -> None:
        """Collective over the ranks of `comm` at the first time."""
        self.device = device
        with torch.cuda.device(device):
            self.stream: Any = torch.cuda.current_stream(device)
            self.place = Place(None if comm.size == 1 else _nccl_of(comm, device), self.stream.cuda_stream)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """The optimizer's work takes its place in the order of the stream that is current now."""
        current: Any = torch.cuda.current_stream(self.device)
        if current == self.stream:
            yield
            return
        self.stream.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(self.stream)


def _nccl_of(comm: Communicator, device: torch.device) -> NcclCommunicator:
    if comm not in _made:
        _made[comm] = (device, NcclCommunicator(comm))
    made_on, nccl = _made[comm]
    if made_on != device:
        raise refuse(
            f"communicator '{comm.name}' exchanges on {made_on} already: for parameters on {device} make another one, by "
            "onebit.torch.init(name=...), and give it as comm="
        )
    return nccl
