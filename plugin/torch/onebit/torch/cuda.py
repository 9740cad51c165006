"""What PyTorch has of a CUDA device, for those that need it: where optimizers of CUDA tensors are (a stream, and NCCL over the
communicator's ranks, made at the first need), and what brings tensors to the host.

Nothing else of the package knows torch.cuda.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterator, Optional, Sequence, Tuple

import torch
from onebit._buffers import refuse
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.nccl import NcclCommunicator
from onebit.optimizer import NativeOptimizer, Place, parse_section
from onebit.together import together

_api: Any = torch.cuda  # much of which has no types in PyTorch 1.13
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
        """Collective over the ranks of `comm`."""
        self.device = device
        with _api.device(device):
            self.stream = _api.current_stream(device)
            together(comm, _fault_of(comm, self.stream), "cannot have an optimizer on its CUDA device")
            self.place = Place(None if comm.size == 1 else _nccl_of(comm, device), self.stream.cuda_stream)

    @contextlib.contextmanager
    def in_order(self, tensors: Sequence[torch.Tensor] = ()) -> Iterator[None]:
        """The optimizer's work takes its place in the order of the stream that is current now, with its device current: the
        library would make the one that was current again, and by that a context on a device that nobody uses.

        Args:
            tensors: what the work reads and PyTorch may give away while it runs.
        """
        with _api.device(self.device):
            if _api.is_current_stream_capturing():
                raise OneBitError(
                    Code.INVALID_USAGE,
                    "an optimizer waits on the host for the other ranks, which no CUDA graph can hold: capture forward and "
                    "backward alone",
                )
            current = _api.current_stream(self.device)
            if current == self.stream:
                yield
                return
            self.stream.wait_stream(current)
            for each in tensors:
                each.record_stream(self.stream)
            try:
                yield
            finally:
                current.wait_stream(self.stream)

    @contextlib.contextmanager
    def ending_waits(self, failures: Sequence[Code]) -> Iterator[None]:
        """A call within that has lost the other ranks ends what NCCL waits for on the stream, which PyTorch's work would
        wait behind for good.

        Args:
            failures: the codes of errors that tell so.
        """
        try:
            yield
        except OneBitError as error:
            if error.code in failures and self.place.nccl is not None:
                with contextlib.suppress(OneBitError):  # the first failure is the one to tell
                    self.place.nccl.abort(error.message)
            raise


def free_unused_memory() -> None:
    """What PyTorch's allocator keeps for later goes back to the device, where the library takes its own."""
    _api.empty_cache()


def future_of(buffer: torch.Tensor) -> Any:
    """A future that a tensor can be the result of: who waits for it is behind the stream that is current then."""
    device = device_of([buffer])
    future: Any = torch.futures.Future(devices=[] if device is None else [device])
    return future


class Arrival:
    """The point of the current stream where a tensor is ready; nothing for one in host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = device_of([tensor])
        self._event: Any = None if self._device is None else _api.current_stream(self._device).record_event()

    @property
    def device(self) -> Optional[torch.device]:
        return self._device

    def hold_up(self, stream: Any) -> None:
        """What `stream` is given from now on is behind it."""
        stream.wait_event(self._event)


def pinned(size: int) -> torch.Tensor:
    """Bytes of host memory that a device copies from and to while the host goes on."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Staging:
    """Pinned host memory where a thread has a device's tensors, one at a time, for what the host does with them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _api.Stream(device)
        self._memory = torch.empty(0, dtype=torch.uint8)

    @contextlib.contextmanager
    def on_host(self, tensor: torch.Tensor, arrival: Arrival) -> Iterator[torch.Tensor]:
        """A copy of a contiguous `tensor`, once that is ready. What the copy holds at the end goes back."""
        needed = tensor.numel() * tensor.element_size()
        if self._memory.numel() < needed:
            self._memory = pinned(needed)
        host = self._memory[:needed].view(tensor.dtype).view(tensor.shape)
        with self.current():
            arrival.hold_up(self._stream)
            tensor.record_stream(self._stream)
            host.copy_(tensor, non_blocking=True)
            self._stream.synchronize()
        yield host
        with self.current():
            tensor.copy_(host, non_blocking=True)

    def current(self) -> Any:
        """Makes the stream of the copies current: what comes then is behind them."""
        return _api.stream(self._stream)


def _fault_of(comm: Communicator, stream: Any) -> Optional[OneBitError]:
    """What keeps this rank from having any optimizer on its current device (no libonebit-cuda.so, a driver that is too old):
    found out before the others wait for it in NCCL."""
    config = parse_section({"type": "Adam", "params": {}})
    try:
        NativeOptimizer(config, "probe", [], [], comm, Place(None, stream.cuda_stream)).close()
    except OneBitError as error:
        return error
    return None


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
