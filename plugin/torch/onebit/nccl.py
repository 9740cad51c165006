"""NCCL communicators for optimizers in a GPU's memory, made over a communicator of onebit's: the library by ctypes.

Threads: one at a time, that which uses the communicator.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from pathlib import Path
from typing import Any, List, Optional

from onebit._abi import UniqueId
from onebit._library import pointer_of
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.together import together

_NAME = "libnccl.so.2"
_ID_BYTES = 128


def library_path() -> str:
    """The NCCL to use, in this order: the file that ``ONEBIT_NCCL_LIBRARY`` names, the one that this process has loaded, the
    one that came with PyTorch, what the loader finds."""
    named = os.environ.get("ONEBIT_NCCL_LIBRARY")
    if named:
        return named
    for path in _loaded():
        if Path(path).name.startswith("libnccl.so"):
            return path
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        packages = Path(torch.__file__).resolve().parent.parent
        beside = packages / "nvidia" / "nccl" / "lib" / _NAME
        if beside.exists():
            return str(beside)
        for path in _loaded():
            if Path(path).name.startswith("libtorch_cuda") and hasattr(ctypes.CDLL(path), "ncclGetUniqueId"):
                return path  # linked in
    return _NAME


class NcclCommunicator:
    """An ``ncclComm_t`` of the ranks of a communicator, on this rank's current CUDA device."""

    def __init__(self, comm: Communicator) -> None:
        """Collective over the ranks of `comm`.

        Raises:
            OneBitError: on all ranks, when one has no NCCL; naming what failed.
        """
        self.path = library_path()
        self._handle: Optional[int] = None
        self._end = "is closed"
        unique_id = UniqueId()
        failure: Optional[OneBitError] = None
        try:
            self._library = ctypes.CDLL(self.path)
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            self._library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
            if comm.rank == 0:
                self._call("ncclGetUniqueId", ctypes.byref(unique_id))
        except (OSError, AttributeError) as error:
            failure = OneBitError(
                Code.SYSTEM_ERROR, f"{self.path} is no NCCL that can be loaded: {error}; set ONEBIT_NCCL_LIBRARY to one"
            )
        except OneBitError as error:
            failure = error
        together(comm, failure, "cannot load NCCL")
        shared = bytearray(bytes(unique_id))
        comm.broadcast(shared, 0)
        handle = ctypes.c_void_p()
        # Ranks that have the library come; one that still fails ends the others' wait in NCCL.
        self._call("ncclCommInitRank", ctypes.byref(handle), comm.size, UniqueId.from_buffer_copy(shared), comm.rank)
        self._handle = pointer_of(handle)
        self._dependents: "weakref.WeakSet[Any]" = weakref.WeakSet()  # to be closed before it
        self._finalizer = weakref.finalize(self, _destroy, self._library, self._handle)
        comm.add_dependent(self)

    @property
    def handle(self) -> int:
        """The ``ncclComm_t``."""
        if self._handle is None:
            raise OneBitError(Code.INVALID_USAGE, f"the NCCL communicator {self._end}")
        return self._handle

    def add_dependent(self, dependent: Any) -> None:
        """`dependent.close()` will be called before the communicator ends."""
        self._dependents.add(dependent)

    def abort(self, reason: str) -> None:
        """Ends what this rank waits for, after a failure: optimizers over it can still be saved. Not collective."""
        if self._handle is not None and self._finalizer.detach() is not None:
            handle, self._handle = self._handle, None
            self._end = f"was aborted after a failure: {reason}. Steps need another communicator (onebit.init); saving does not"
            self._call("ncclCommAbort", ctypes.c_void_p(handle))

    def close(self) -> None:
        """Ends it, and before it the optimizers that use it."""
        for dependent in list(self._dependents):
            dependent.close()
        self._handle = None
        self._finalizer()

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            why = self._library.ncclGetErrorString(result) or b""
            raise OneBitError(Code.SYSTEM_ERROR, f"{name} of {self.path}: {why.decode(errors='replace')}")


def _loaded() -> List[str]:
    """The shared libraries of this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = [line.rstrip("\n").split(maxsplit=5)[5:] for line in file]
    return list(dict.fromkeys(path[0] for path in paths if path and path[0].startswith("/") and ".so" in path[0]))


def _destroy(library: ctypes.CDLL, handle: int) -> None:
    comm, failure = ctypes.c_void_p(handle), ctypes.c_int()
    library.ncclCommGetAsyncError(comm, ctypes.byref(failure))
    # One that has failed would wait for ranks that are gone.
    (library.ncclCommAbort if failure.value else library.ncclCommDestroy)(comm)


__all__: List[str] = ["NcclCommunicator", "library_path"]
