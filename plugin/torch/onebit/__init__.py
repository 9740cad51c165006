"""onebit: the allreduce of distributed training, 16 to 32 times smaller on the wire.

This package calls libonebit.so. For training with PyTorch see `onebit.torch`; here is what does not need it::

    import onebit
    comm = onebit.init()                              # the ranks that torchrun, mpirun or srun started
    comm.allreduce(values, onebit.AVG, tag="layer1")  # in 1 bit, with error compensation
    comm.allreduce(loss, onebit.AVG)                  # exact
"""

from __future__ import annotations

import ctypes
from typing import Dict, Mapping, Optional

from onebit._abi import DataType, ReduceOp
from onebit._library import call, library_path, version
from onebit.communicator import Communicator, unique_id
from onebit.errors import Code, LibraryNotFoundError, OneBitError
from onebit.tags import scope, tag_buffer, untag_buffer

__version__ = "0.1.0"

SUM = ReduceOp.SUM
AVG = ReduceOp.AVG


def init(name: str = "world", settings: Optional[Mapping[str, object]] = None) -> Communicator:
    """A communicator of all ranks of the job, by the launcher's environment. Collective.

    Args:
        name: in messages, rules (``comm=...``) and file names.
        settings: ONEBIT_ variables (docs/settings.md) which win over the environment.
    """
    return Communicator.from_environment(name, settings)


def settings() -> Dict[str, str]:
    """The settings that a communicator created now would have, by variable; secrets are hidden."""
    needed = ctypes.c_size_t()
    call("onebitGetSettings", None, 0, ctypes.byref(needed))
    text = ctypes.create_string_buffer(needed.value)
    call("onebitGetSettings", text, needed.value, None)
    found = {}
    for line in text.value.decode(errors="replace").splitlines():
        name, _, rest = line.partition("=")
        if name.startswith("ONEBIT_"):
            found[name] = rest.split("  #")[0].strip()
    return found


__all__ = [
    "AVG",
    "SUM",
    "Code",
    "Communicator",
    "DataType",
    "LibraryNotFoundError",
    "OneBitError",
    "ReduceOp",
    "init",
    "library_path",
    "scope",
    "settings",
    "tag_buffer",
    "unique_id",
    "untag_buffer",
    "version",
]
