"""An optimizer of libonebit.so as it is, without PyTorch: tensors are addresses, of host memory or of a GPU's.
`onebit.torch` is built on it.

Threads: one at a time, that which uses the communicator. The owner of the memory keeps it alive and in place.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from onebit import _abi
from onebit._abi import DataType
from onebit._buffers import refuse
from onebit._library import Text, call, pointer_of, text_of
from onebit.communicator import Communicator
from onebit.nccl import NcclCommunicator


class TensorSpec(NamedTuple):
    """A tensor of parameters: `elements` of them at `address`, the same on all ranks."""

    name: str
    address: int
    elements: int
    datatype: DataType
    group: int
    mask: int = 0
    """The address of as many bytes, or 0: elements where they are 0 have no momentum."""


class Place(NamedTuple):
    """Where a GPU's optimizer is: addresses are the device's then."""

    nccl: Optional[NcclCommunicator]
    """None with one rank."""
    stream: int
    """The ``cudaStream_t``; 0 for the default stream."""


class Info(NamedTuple):
    """Where an optimizer stands."""

    steps: int
    """Taken; skipped ones are not counted."""
    skipped_steps: int
    """Skipped on all ranks, as a gradient of some rank was not finite."""
    compressed: bool
    """Whether steps are in the compressed stage."""
    in_common: bool
    """Whether all ranks have the same parameters now; in 0/1 Adam not between syncs."""
    memory: int
    """Bytes of state and residuals on this rank."""
    full_bytes: int = 0
    """Sent by this rank in full-precision steps since the optimizer was made. In a GPU's memory computed from the sizes that
    NCCL is given, as it does not tell (docs/optimizers.md)."""
    compressed_bytes: int = 0
    """Likewise, in all other steps."""
    fp32_bytes: int = 0
    """What the steps taken would have sent, all in full precision."""

    @property
    def sent_bytes(self) -> int:
        return self.full_bytes + self.compressed_bytes

    @property
    def ratio(self) -> Optional[float]:
        """How many times less than in full precision was sent; None before anything was."""
        return self.fp32_bytes / self.sent_bytes if self.fp32_bytes and self.sent_bytes else None


def parse_section(section: Mapping[str, Any]) -> _abi.OptimizerConfig:
    """What a DeepSpeed section means: {"type": "OneBitLamb", "params": {"lr": 1e-3, ...}}.

    Raises:
        OneBitError: for a key that is unknown or would have no effect, and for a value out of range, with what to do.
    """
    try:
        text = json.dumps(section)
    except TypeError as error:
        raise refuse(f"the section of the optimizer is not JSON: {error}") from error
    config = _abi.OptimizerConfig()
    call("onebitOptimizerParseConfig", text.encode(), ctypes.byref(config))
    return config


class NativeOptimizer:
    """Owns an ``onebitOptimizer_t``."""

    def __init__(
        self,
        config: _abi.OptimizerConfig,
        name: str,
        groups: Sequence[_abi.Group],
        tensors: Sequence[TensorSpec],
        comm: Communicator,
        place: Optional[Place] = None,
    ) -> None:
        """Not collective; with a `place` it is.

        Args:
            config: of `parse_section`.
            name: in messages and file names.
            groups: the hyper-parameters of each parameter group.
            tensors: in the same order on all ranks.
            comm: whose ranks step together.
            place: of an optimizer in a GPU's memory, which exchanges over NCCL.
        """
        own = _abi.OptimizerConfig.from_buffer_copy(config)
        own.name = text_of(name)
        own.groups = (_abi.Group * len(groups))(*groups)
        own.ngroups = len(groups)
        specs = (_abi.Tensor * len(tensors))()
        for spec, each in zip(specs, tensors):
            spec.name = text_of(each.name)
            spec.parameters = each.address
            spec.count = each.elements
            spec.datatype = spec.gradient_datatype = each.datatype
            spec.group = each.group
            spec.mask = each.mask or None
        handle = ctypes.c_void_p()
        made = (ctypes.byref(handle), ctypes.byref(own), specs, len(tensors))
        if place is None:
            call("onebitOptimizerCreate", *made, comm.handle)
        else:
            nccl = None if place.nccl is None else place.nccl.handle
            settings = None if place.nccl is None else f"ONEBIT_NCCL_LIBRARY={place.nccl.path}".encode()
            device = _abi.Device(ctypes.sizeof(_abi.Device), nccl, place.stream, settings)
            call("onebitOptimizerCreateOnDevice", *made, ctypes.byref(device))
        self._handle: Optional[int] = pointer_of(handle)
        self._gradients = (ctypes.c_void_p * max(1, len(tensors)))()
        # It holds the communicator, which must go later even if both are garbage at once.
        owner: Union[Communicator, NcclCommunicator] = comm if place is None or place.nccl is None else place.nccl
        self._finalizer = weakref.finalize(self, _destroy, self._handle, owner)
        self.comm = comm
        self._place = place
        owner.add_dependent(self)

    def step(self, gradients: Sequence[Optional[int]], rates: Sequence[float]) -> bool:
        """One step with this rank's own gradients. Collective.

        Args:
            gradients: an address for each tensor; None for one without a gradient, which counts as zeros.
            rates: the learning rate of each group.

        Returns:
            False when all ranks skipped it, as some rank had a gradient that is not finite.
        """
        self._check_place()
        for group, rate in enumerate(rates):
            call("onebitOptimizerSetLearningRate", self.handle, group, rate)
        self._gradients[: len(gradients)] = list(gradients)
        skipped = ctypes.c_int()
        call("onebitOptimizerStep", self.handle, self._gradients, ctypes.byref(skipped))
        return skipped.value == 0

    def freeze(self) -> None:
        """Ends the warm-up: the next step is compressed. All ranks, between the same steps."""
        call("onebitOptimizerFreeze", self.handle)

    def info(self) -> Info:
        info = _abi.OptimizerInfo(size=ctypes.sizeof(_abi.OptimizerInfo))
        call("onebitOptimizerGetInfo", self.handle, ctypes.byref(info))
        bytes_sent = (info.full_bytes, info.compressed_bytes, info.fp32_bytes)
        return Info(info.steps, info.skipped_steps, info.compressed != 0, info.in_common != 0, info.memory, *bytes_sent)

    def residual_norm(self) -> Tuple[float, float]:
        """L2 norms of the residuals on this rank: of its own tensors, and of the partitions that it owns."""
        worker, owner = ctypes.c_double(), ctypes.c_double()
        call("onebitOptimizerResidualNorm", self.handle, ctypes.byref(worker), ctypes.byref(owner))
        return worker.value, owner.value

    def read_state(self, tensor: int, name: str, address: int, count: int) -> None:
        """Copies an array of a tensor's state (exp_avg, exp_avg_sq, ...) to `count` fp32 numbers at `address`, which is
        host memory."""
        call("onebitOptimizerGetState", self.handle, tensor, text_of(name), address, count)

    def coefficient(self, tensor: int) -> float:
        """LAMB: what the learning rate of a tensor was multiplied with in the last step."""
        value = ctypes.c_double()
        call("onebitOptimizerGetCoefficient", self.handle, tensor, ctypes.byref(value))
        return value.value

    def save(self, directory: Text, whole: bool = False) -> None:
        """Saves this rank's part, or what stands for itself if `whole`, to a file of its own. A local call."""
        call("onebitOptimizerSaveWhole" if whole else "onebitOptimizerSave", self.handle, text_of(directory))

    def load(self, directory: Text, step: Optional[int] = None) -> None:
        """Sets parameters and state to the newest that all ranks, the same or another number, saved, or to that of `step`.
        Collective: all ranks load what was saved at one moment, or none loads anything; on an error nothing changed."""
        self._check_place()
        if step is None:
            call("onebitOptimizerLoad", self.handle, text_of(directory))
        else:
            call("onebitOptimizerLoadStep", self.handle, text_of(directory), step)

    def close(self) -> None:
        self._handle = None
        self._finalizer()

    def _check_place(self) -> None:
        """Raises where NCCL's communicator has gone, which the library would use."""
        if self._place is not None and self._place.nccl is not None:
            self._place.nccl.handle  # raises

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise refuse("the optimizer is closed, or its communicator is")
        return self._handle


def group_values(group: _abi.Group) -> Dict[str, float]:
    """The hyper-parameters of a group by their C names."""
    return {str(name): float(getattr(group, str(name))) for name, *_ in group._fields_}


def _destroy(handle: int, _: Union[Communicator, NcclCommunicator]) -> None:
    call("onebitOptimizerDestroy", handle)


__all__: List[str] = ["Info", "NativeOptimizer", "Place", "TensorSpec", "group_values", "parse_section"]
