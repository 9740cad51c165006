"""Finds and loads libonebit.so, checks its version, and calls it.

ctypes releases Python's lock for the time of each call, so that other threads go on while one waits for the network.
Threads: loading is done once, under a lock; calls have the library's own rules (onebit.h).
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, List, Optional, Tuple, Union

from onebit import _abi
from onebit.errors import Code, LibraryNotFoundError, OneBitError

VERSION = (0, 1, 0)
"""The version of the C API that this package was written for. Before 1.0 each minor version is a new ABI."""

Text = Union[str, "os.PathLike[str]"]
"""What names a directory, or anything else."""

_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The library; loads it at the first call.

    Looked for in this order: the file named by ``ONEBIT_LIBRARY`` (no other then), beside the package, in the build
    tree that the package lies in, by the loader's path.

    Raises:
        LibraryNotFoundError: naming all that was tried, or a library of another version.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _find()
        return _loaded


def library_path() -> str:
    """The file that was loaded, as it was named."""
    return str(library()._name)


def version() -> Tuple[int, int, int]:
    """Major, minor and patch of the library that is loaded."""
    return _version_of(library())


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the library that returns a result code.

    Raises:
        OneBitError: with the code and the library's message.
    """
    loaded = library()
    result = getattr(loaded, name)(*arguments)
    if result != 0:
        message = loaded.onebitGetLastError(None) or b""
        raise OneBitError(Code(result), message.decode(errors="replace") or f"{name} failed")


def text_of(value: Text) -> bytes:
    """A text or path as the library takes it.

    Raises:
        OneBitError: for one with a NUL, where the library would see its end.
    """
    text = os.fsencode(value)
    if b"\0" in text:
        raise OneBitError(Code.INVALID_ARGUMENT, f"{value!r} has a NUL in it, which no name, tag or path may have")
    return text


def pointer_of(handle: ctypes.c_void_p) -> int:
    """The address in a handle that the library has filled in."""
    assert handle.value is not None
    return handle.value


def _find() -> ctypes.CDLL:
    named = os.environ.get("ONEBIT_LIBRARY")
    if named:
        return _load(named, "ONEBIT_LIBRARY names it")
    tried: List[str] = []
    for path in _places():
        if path.exists():
            return _load(str(path), "it was found there")
        tried.append(str(path))
    soname = f"libonebit.so.{VERSION[0]}.{VERSION[1]}"
    for name in (soname, "libonebit.so"):
        try:
            ctypes.CDLL(name)
        except OSError as error:
            tried.append(f"{name} by the loader's path ({error})")
        else:
            return _load(name, "the loader found it")
    raise LibraryNotFoundError(
        "libonebit.so was not found. Tried: "
        + "; ".join(tried)
        + ". Build it (cmake --preset release && cmake --build --preset release --target onebit), install it where the "
        "loader looks, or set ONEBIT_LIBRARY to the file"
    )


def _places() -> List[Path]:
    """Where the library may lie by a path of its own: beside the package, and in the build tree around it."""
    package = Path(__file__).resolve().parent
    places = [package / "libonebit.so"]
    # PACKAGE = ROOT/plugin/torch/onebit in the source tree.
    parents = package.parents
    if len(parents) > 2 and (parents[2] / "include" / "onebit" / "onebit.h").exists():
        places += [parents[2] / "build" / preset / "lib" / "libonebit.so" for preset in ("release", "dev")]
    return places


def _load(name: str, why: str) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        raise LibraryNotFoundError(f"{name} cannot be loaded, though {why}: {error}") from error
    missing = _abi.declare(loaded)
    if "onebitGetVersion" in missing:
        raise LibraryNotFoundError(f"{name} is not libonebit.so: it has no onebitGetVersion ({why})")
    found = _version_of(loaded)
    if found[:2] != VERSION[:2] or found < VERSION:
        due, got = (".".join(map(str, each)) for each in (VERSION, found))
        raise LibraryNotFoundError(
            f"{name} is onebit {got}, but this package needs {due} or a later one of {VERSION[0]}.{VERSION[1]} ({why}): "
            "install the package and the library of the same release, or set ONEBIT_LIBRARY"
        )
    if missing:
        raise LibraryNotFoundError(
            f"{name} lacks {', '.join(missing)} ({why}): it was built from older sources than this package; build it anew"
        )
    return loaded


def _version_of(loaded: ctypes.CDLL) -> Tuple[int, int, int]:
    number = ctypes.c_int()
    loaded.onebitGetVersion(ctypes.byref(number))
    return number.value // 10000, number.value // 100 % 100, number.value % 100
