"""What one rank fails in fails on all, before the others wait for it."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional

from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError


@contextlib.contextmanager
def on_all_ranks(comm: Communicator, what: str) -> Iterator[None]:
    """What raises within on one rank raises on all. Collective.

    Args:
        what: completes "rank 2 ...", as in "cannot load states".
    """
    failure: Optional[Exception] = None
    try:
        yield
    except Exception as error:
        failure = error
    together(comm, failure, what, Code.DATA_ERROR)


def together(comm: Communicator, failure: Optional[BaseException], what: str, code: Code = Code.REMOTE_ERROR) -> None:
    """Raises on all ranks when one has failed: its own failure there, and on the others a message with its number and `what`,
    as in "rank 2 cannot load NCCL". Collective."""
    everywhere: List[int] = []
    try:
        everywhere = share(comm, 0 if failure is None else 1)
    except OneBitError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    if any(everywhere):
        rank = everywhere.index(1)
        raise OneBitError(code, f"rank {rank} {what} (its error says why), so no rank goes on")


def share(comm: Communicator, number: int) -> List[int]:
    """The numbers of all ranks, each from 0 to 255. Collective."""
    everywhere = bytearray(comm.size)
    comm.allgather(bytearray([number]), everywhere)
    return list(everywhere)
