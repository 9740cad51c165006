"""What a failed call raises: the library's result code and its message, in one exception."""

from __future__ import annotations

import enum
from typing import Any


class Code(enum.IntEnum):
    """``onebitResult_t``: what a call came to."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    """The operating system or the network refused something."""
    INTERNAL_ERROR = 2
    """A fault in onebit itself."""
    INVALID_ARGUMENT = 3
    """An argument or a setting is out of its range; the communicator stays usable."""
    INVALID_USAGE = 4
    """Calls or settings do not fit together, on this rank or between ranks."""
    REMOTE_ERROR = 5
    """A peer died, closed its connection or reported a failure."""
    TIMEOUT = 6
    """No progress for ONEBIT_TIMEOUT, or set-up took longer than ONEBIT_INIT_TIMEOUT."""
    ABORTED = 7
    """``Communicator.abort`` was called."""
    DATA_ERROR = 8
    """A file is truncated, corrupt, of another version or of another shape."""


class OneBitError(RuntimeError):
    """A call of onebit failed.

    Attributes:
        code: what kind of failure it is.
        message: what failed, with whom, and what to set.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.code.name.lower().replace('_', ' ')})"


class LibraryNotFoundError(OneBitError, ImportError):
    """libonebit.so was not found, cannot be loaded, or is of another version than this package."""

    def __init__(self, message: str) -> None:
        OneBitError.__init__(self, Code.SYSTEM_ERROR, message)

    def __reduce__(self) -> Any:
        return type(self), (self.message,)  # exceptions are pickled by their arguments, which are two
