"""Tags for calls that do not name one: by scope, or by the range of memory that they send.

A tag makes an allreduce go in 1 bit, and names its residuals. Scopes belong to a thread, ranges to the process.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from onebit._abi import ELEMENT_BYTES
from onebit._buffers import memory_of
from onebit._library import call, text_of


@contextlib.contextmanager
def scope(tag: str) -> Iterator[None]:
    """Untagged allreduces of this thread inside have the tag `tag`, the second in a scope "tag#1", and so on."""
    call("onebitScopeBegin", text_of(tag))
    try:
        yield
    finally:
        call("onebitScopeEnd")


def tag_buffer(values: Any, tag: str) -> None:
    """Gives allreduces whose send buffer lies in `values` the tag `tag`, until `untag_buffer`. `values` must stay."""
    memory = memory_of(values)
    call("onebitTagBuffer", memory.address, memory.elements * ELEMENT_BYTES[memory.datatype], text_of(tag))


def untag_buffer(values: Any) -> None:
    """Forgets the range of `values`."""
    call("onebitUntagBuffer", memory_of(values).address)
