"""CUDA tensors where there is no GPU: tensors of PyTorch's CPU whose elements lie in the memory of the stand-in for CUDA
(docs/cuda-on-cpu.md), and as much of torch.cuda as the package and its tests use, on the stand-in's streams.

What the library does runs in the order of those streams. Of PyTorch's own operations, modules and copies that block nobody wait
for the current stream and then run on the host; others run at once, so `settle` comes before a test looks. A test that is about
order gives a stream work by `write_later`. Gradients are moved to the stand-in's memory after
each backward. Not imitated: the caching allocator; `recorded` lists the tensors that were kept from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import torch

from onebit.torch import cuda

recorded = []
"""(address, stream) of each Tensor.record_stream."""
calls = []
"""Names of functions of torch.cuda that only free or tell."""

_own = threading.local()
_memory = []
_moved = []  # parameters in the stand-in's memory, with memory for their gradients
_capturing = False


def _cudart():
    return ctypes.CDLL(os.environ["ONEBIT_TEST_CUDART"])


def _call(name, *arguments):
    result = getattr(_cudart(), name)(*arguments)
    assert result == 0, f"{name}: {result}"


def current_device():
    number = ctypes.c_int()
    _call("cudaGetDevice", ctypes.byref(number))
    return number.value


class Event:
    def __init__(self, stream):
        self._event = ctypes.c_void_p()
        _call("cudaEventCreateWithFlags", ctypes.byref(self._event), 2)
        _call("cudaEventRecord", self._event, ctypes.c_void_p(stream.cuda_stream))

    def hold_up(self, stream):
        _call("cudaStreamWaitEvent", ctypes.c_void_p(stream.cuda_stream), self._event, 0)


class Stream:
    def __init__(self, device=None, handle=None):
        if handle is None:
            made = ctypes.c_void_p()
            _call("cudaStreamCreateWithFlags", ctypes.byref(made), 1)
            handle = made.value
        self.cuda_stream = handle

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    __hash__ = None

    def record_event(self):
        return Event(self)

    def wait_event(self, event):
        event.hold_up(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def synchronize(self):
        _call("cudaStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


def current_stream(device=None):
    return getattr(_own, "stream", None) or Stream(handle=0)


@contextlib.contextmanager
def stream(new):
    before, _own.stream = current_stream(), new
    try:
        yield
    finally:
        _own.stream = before


@contextlib.contextmanager
def device(which):
    before = current_device()
    _call("cudaSetDevice", torch.device(which).index)
    try:
        yield
    finally:
        _call("cudaSetDevice", before)


@contextlib.contextmanager
def capturing():
    """As within torch.cuda.graph."""
    global _capturing
    _capturing = True
    try:
        yield
    finally:
        _capturing = False


def tensor_like(values):
    """A copy in the stand-in's memory, which stays taken while the process lives."""
    size = max(1, values.numel() * values.element_size())
    address = ctypes.c_void_p()
    _call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
    _memory.append((ctypes.c_char * size).from_address(address.value))
    made = torch.frombuffer(_memory[-1], dtype=values.dtype, count=values.numel()) if values.numel() else values.clone()
    return made.view(values.shape).copy_(values.detach())


def is_there(tensor):
    attributes = (ctypes.c_int * 64)()  # the first is the kind of memory
    _call("cudaPointerGetAttributes", attributes, ctypes.c_void_p(tensor.data_ptr()))
    return attributes[0] == 2


def device_of(tensors):
    places = {is_there(each) for each in tensors}
    assert len(places) <= 1, "tensors of both memories"
    return torch.device("cuda", current_device()) if True in places else None


def move(module):
    """`module.to("cuda")`."""
    for parameter in module.parameters():
        parameter.data = tensor_like(parameter)
        _moved.append((parameter, tensor_like(parameter)))
    return module


def write_later(tensor, values, on):
    """Gives the stream `on` the work of writing `values` to a tensor, behind all that it has."""
    size = ctypes.c_size_t(values.numel() * values.element_size())
    addresses = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(values.data_ptr())
    _call("cudaMemcpyAsync", *addresses, size, 1, ctypes.c_void_p(on.cuda_stream))


def settle():
    """Waits for the current stream."""
    current_stream().synchronize()


def install():
    """From here on "cuda" is the stand-in, in this process."""
    cuda.device_of = device_of
    cuda.future_of = lambda buffer: torch.futures.Future()
    cuda.pinned = lambda size: torch.empty(size, dtype=torch.uint8)
    for name, function in {
        "current_device": current_device,
        "current_stream": current_stream,
        "device": device,
        "device_count": lambda: int(os.environ.get("CUDA_CPU_DEVICES", "8")),
        "empty_cache": lambda: calls.append("empty_cache"),
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: _capturing,
        "set_device": lambda number: _call("cudaSetDevice", number),
        "Stream": Stream,
        "stream": stream,
        "synchronize": lambda: _call("cudaDeviceSynchronize"),
    }.items():
        setattr(torch.cuda, name, function)
    torch.Tensor.record_stream = lambda self, to: recorded.append((self.data_ptr(), to.cuda_stream))

    def patched(owner, name, replacement):
        setattr(owner, name, replacement(getattr(owner, name)))

    def is_cuda(arguments):
        return bool(arguments) and str(arguments[0]).startswith("cuda")

    patched(torch.nn.Module, "to", lambda to: lambda self, *a, **k: move(self) if is_cuda(a) else to(self, *a, **k))
    patched(torch.Tensor, "to", lambda to: lambda self, *a, **k: self if is_cuda(a) else to(self, *a, **k))

    def backward(original):
        def run(self, *arguments, **keywords):
            original(self, *arguments, **keywords)
            for parameter, gradient in _moved:
                if parameter.grad is not None and not is_there(parameter.grad):
                    parameter.grad = gradient.copy_(parameter.grad)

        return run

    patched(torch.Tensor, "backward", backward)

    def in_order(original):
        def run(self, *arguments, **keywords):
            settle()
            return original(self, *arguments, **keywords)

        return run

    patched(torch.nn.Module, "__call__", in_order)
    patched(
        torch.Tensor,
        "copy_",
        lambda copy: lambda self, source, non_blocking=False: in_order(copy)(self, source) if non_blocking else copy(self, source),
    )
