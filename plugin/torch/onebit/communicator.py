"""A communicator: this process's place among the ranks, and the collective calls between them.

Threads: a communicator is used by one thread at a time; `abort` may be called from any. Python's lock is not held while a
call waits. All ranks make the same calls in the same order.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from onebit import _abi
from onebit._abi import ReduceOp
from onebit._buffers import Memory, memory_of, refuse
from onebit._library import Text, call, pointer_of, text_of
from onebit.errors import Code

_EXPLANATION_BYTES = 1024

live: "weakref.WeakSet[Communicator]" = weakref.WeakSet()
"""All communicators of the process."""


def _reduction(op: Union[ReduceOp, str]) -> ReduceOp:
    if isinstance(op, ReduceOp):
        return op
    if isinstance(op, str) and op.upper() in ReduceOp.__members__:
        return ReduceOp[op.upper()]
    raise refuse(f"op is {op!r}; onebit.SUM, onebit.AVG, 'sum' and 'avg' are there")


class Communicator:
    """The ranks of a job, or some of them, connected to each other.

    Make one by `init`, or by `unique_id` and `from_unique_id` in a program that has its own way to hand bytes around.
    Buffers are PyTorch CPU tensors, or objects with the buffer protocol (NumPy arrays, array.array), contiguous.
    """

    def __init__(self, handle: int, name: str) -> None:
        """Takes over an ``onebitComm_t``. Programs call `init` instead."""
        self._handle: Optional[int] = handle
        self.name = name
        self._dependents: "weakref.WeakSet[Any]" = weakref.WeakSet()  # to be closed before the communicator
        self._finalizer = weakref.finalize(self, _destroy, handle)
        number = ctypes.c_int()
        call("onebitCommUserRank", handle, ctypes.byref(number))
        self.rank = number.value
        call("onebitCommCount", handle, ctypes.byref(number))
        self.size = number.value
        live.add(self)

    @classmethod
    def from_environment(cls, name: str = "world", settings: Optional[Mapping[str, object]] = None) -> "Communicator":
        """All ranks of the job, by the launcher's variables: torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
        or those of Open MPI, PMI or Slurm. Collective.

        Args:
            name: in messages, rules (``comm=...``) and file names.
            settings: ONEBIT_ variables which win over the environment.
        """
        handle = ctypes.c_void_p()
        call("onebitCommInitEnv", ctypes.byref(handle), ctypes.byref(_config(name, settings)))
        return cls(pointer_of(handle), name)

    @classmethod
    def from_unique_id(
        cls,
        unique_id: bytes,
        rank: int,
        size: int,
        name: str = "world",
        settings: Optional[Mapping[str, object]] = None,
    ) -> "Communicator":
        """`size` ranks that hold `unique_id`; rank 0 must be in the process that made it. Collective."""
        if len(unique_id) != ctypes.sizeof(_abi.UniqueId):
            raise refuse(f"a unique id has {ctypes.sizeof(_abi.UniqueId)} bytes, this has {len(unique_id)}")
        handle = ctypes.c_void_p()
        config = ctypes.byref(_config(name, settings))
        parts = _abi.UniqueId.from_buffer_copy(unique_id)
        call("onebitCommInitRankConfig", ctypes.byref(handle), size, parts, rank, config)
        return cls(pointer_of(handle), name)

    # ---- collectives ----

    def allreduce(self, values: Any, op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[str] = None, out: Any = None) -> Any:
        """Reduces `values` of all ranks; every rank gets the same bytes.

        With a tag (and where the rules of ONEBIT_COMPRESS and ONEBIT_MIN_SIZE allow it) the exchange is in 1 bit with
        error compensation: what a call loses, the next call of that tag gives back. Without a tag it is exact.

        Args:
            values: fp32, fp16, bf16, fp64, int32 or int64.
            op: the sum or, of floating types, the mean; also "sum" or "avg".
            tag: the name of the tensor, equal on all ranks.
            out: receives the result; by default `values` themselves do.

        Returns:
            `out`, or `values`.

        Raises:
            OneBitError: INVALID_USAGE, and the communicator is unusable, when ranks differ in count, type, op or tag.
        """
        source = memory_of(values)
        target = source if out is None else memory_of(out)
        _same_shape(source, target)
        call(
            "onebitAllReduce",
            source.address,
            target.address,
            source.elements,
            source.datatype,
            _reduction(op),
            None if tag is None else text_of(tag),
            self.handle,
            None,
        )
        return values if out is None else out

    def broadcast(self, values: Any, root: int = 0) -> Any:
        """`values` of every rank become those of `root`. Returns `values`."""
        memory = memory_of(values)
        call(
            "onebitBroadcast", memory.address, memory.address, memory.elements, memory.datatype, root, self.handle, None
        )
        return values

    def allgather(self, values: Any, out: Any) -> Any:
        """`out` (`size` times the elements of `values`) becomes the values of all ranks in rank order. Returns `out`."""
        source, target = memory_of(values), memory_of(out)
        if target.datatype != source.datatype or target.elements != source.elements * self.size:
            raise refuse(
                f"out has {target.elements} x {target.datatype.name.lower()}, but {self.size} ranks send "
                f"{source.elements} x {source.datatype.name.lower()} each"
            )
        call("onebitAllGather", source.address, target.address, source.elements, source.datatype, self.handle, None)
        return out

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        call("onebitBarrier", self.handle)

    def explain(self, values: Any, op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[str] = None) -> str:
        """How `allreduce` with these arguments would go, and why: "exact: not tagged". Communicates nothing."""
        memory = memory_of(values)
        text = ctypes.create_string_buffer(_EXPLANATION_BYTES)
        name = None if tag is None else text_of(tag)
        size = len(text)
        call("onebitExplain", memory.address, memory.elements, memory.datatype, _reduction(op), name, self.handle, text, size)
        return text.value.decode(errors="replace")

    # ---- residuals ----

    def save_residuals(self, directory: Text) -> None:
        """Saves this rank's residuals to a file of its own in `directory`. A local call, which every rank makes."""
        call("onebitResidualSave", self.handle, text_of(directory))

    def load_residuals(self, directory: Text) -> None:
        """Loads what a communicator of this name, of the same or another number of ranks, saved in `directory`."""
        call("onebitResidualLoad", self.handle, text_of(directory))

    def reset_residuals(self, tag: Optional[str] = None) -> None:
        """Drops the residuals of `tag`, or of all tags. Every rank must do it between the same calls."""
        call("onebitResidualReset", self.handle, None if tag is None else text_of(tag))

    def residual_bytes(self, tag: Optional[str] = None) -> int:
        """Memory that the residuals of `tag`, or of all tags, take on this rank."""
        size = ctypes.c_size_t()
        call("onebitResidualMemory", self.handle, None if tag is None else text_of(tag), ctypes.byref(size))
        return size.value

    def residual_norm(self, tag: Optional[str] = None) -> Tuple[float, float]:
        """L2 norms of the residuals of `tag`, or of all tags, on this rank: of its own tensors, and of the partitions that it owns."""
        worker, owner = ctypes.c_double(), ctypes.c_double()
        name = None if tag is None else text_of(tag)
        call("onebitResidualNorm", self.handle, name, ctypes.byref(worker), ctypes.byref(owner))
        return worker.value, owner.value

    # ---- life ----

    def stats(self) -> Dict[str, int]:
        """Counters since the creation: exact_calls, compressed_calls, reduced_bytes, wire_bytes_sent,
        wire_bytes_received, residual_bytes; of the calls in 1 bit, nanoseconds: compressed_ns in all, encode_ns, average_ns
        and decode_ns (added up over threads), waiting_ns with nothing to compute."""
        stats = _abi.Stats(size=ctypes.sizeof(_abi.Stats))
        call("onebitCommGetStats", self.handle, ctypes.byref(stats))
        return {str(name): int(getattr(stats, str(name))) for name, *_ in stats._fields_ if name != "size"}

    def failure(self) -> Optional[Code]:
        """What has made the communicator unusable; None while it is usable."""
        code = ctypes.c_int()
        call("onebitCommGetAsyncError", self.handle, ctypes.byref(code))
        return None if code.value == 0 else Code(code.value)

    def abort(self) -> None:
        """Makes the call that another thread has in progress, and all later ones, fail, and tells the peers."""
        call("onebitCommAbort", self.handle)

    def close(self) -> None:
        """Ends the communicator in order, and before it the optimizers that use it. Not collective."""
        for dependent in list(self._dependents):
            dependent.close()
        self._handle = None
        self._finalizer()

    @property
    def handle(self) -> int:
        """The ``onebitComm_t``."""
        if self._handle is None:
            raise refuse(f"communicator '{self.name}' is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def add_dependent(self, dependent: Any) -> None:
        """`dependent.close()` will be called before the communicator ends."""
        self._dependents.add(dependent)

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a Communicator can neither be pickled nor copied: make one in each process by init()")

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<onebit.Communicator '{self.name}', rank {self.rank} of {self.size}{', closed' if self.closed else ''}>"


def unique_id() -> bytes:
    """Makes a unique id and opens the socket where ranks will meet. To be called in the process of the later rank 0."""
    made = _abi.UniqueId()
    call("onebitGetUniqueId", ctypes.byref(made))
    return bytes(made)


def _config(name: str, settings: Optional[Mapping[str, object]]) -> _abi.Config:
    lines = "\n".join(f"{key}={value}" for key, value in (settings or {}).items())
    return _abi.Config(ctypes.sizeof(_abi.Config), text_of(name), text_of(lines) if lines else None)


def _destroy(handle: int) -> None:
    call("onebitCommDestroy", handle)


def _same_shape(source: Memory, target: Memory) -> None:
    if (source.elements, source.datatype) != (target.elements, target.datatype):
        raise refuse(
            f"out has {target.elements} x {target.datatype.name.lower()}, the values have "
            f"{source.elements} x {source.datatype.name.lower()}"
        )
