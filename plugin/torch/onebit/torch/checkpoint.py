"""States of an optimizer inside a state_dict, and parameter groups beside its files.

A part of a state_dict is the file that the library writes for a rank, as bytes; it goes through a directory in memory
where there is one. Parameter groups are JSON, written whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
from onebit._library import Text
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.optimizer import NativeOptimizer
from onebit.together import on_all_ranks
from onebit.torch.parameters import plain_number

_FORMAT = 1
_SHARED_MEMORY = "/dev/shm"

# Who saves what where: two optimizers of one name would write over each other.
_claims: "weakref.WeakValueDictionary[Tuple[str, str], Any]" = weakref.WeakValueDictionary()


def _fault(message: str) -> OneBitError:
    return OneBitError(Code.DATA_ERROR, message)


# ---- parts of a state_dict ----


def pack(native: NativeOptimizer, kind: str, name: str, comm: Communicator) -> Dict[str, Any]:
    """This rank's whole state."""
    def fill(directory: str) -> None:
        native.save(directory, whole=True)

    with _filled_directory(2 * native.info().memory, fill) as directory:
        (path,) = Path(directory).iterdir()
        size = path.stat().st_size
        state = torch.empty(size, dtype=torch.uint8)
        with path.open("rb") as file:
            if file.readinto(_bytes(state)) != size:
                raise _fault(f"{path} has changed while it was read")
    return {
        "format": _FORMAT,
        "type": kind,
        "name": name,
        "rank": comm.rank,
        "ranks": comm.size,
        "steps": native.info().steps,
        "state": state,
    }


def check(parts: Sequence[Mapping[str, Any]], kind: str, comm: Communicator) -> List[Mapping[str, Any]]:
    """The states in `parts`; none if they were saved before the first step.

    Raises:
        OneBitError: DATA_ERROR saying which does not belong here or to the rest.
    """
    states: List[Mapping[str, Any]] = []
    for number, part in enumerate(parts):
        if "onebit" not in part or "param_groups" not in part:
            raise _fault(
                f"state_dict {number} is not of an optimizer of onebit: there is no way to go on from another's state; "
                "load the model only"
            )
        if part["onebit"] is not None:
            _check_fields(number, part["onebit"])
            states.append(part["onebit"])
    if states and len(states) != len(parts):
        raise _fault("some of the state_dicts were saved before the first step, others after it")
    for state in states:
        if state["type"] != kind:
            raise _fault(f"the state_dict is of {state['type']}, not of {kind}")
        for key in ("ranks", "steps"):
            if state[key] != states[0][key]:
                raise _fault(f"the state_dicts are of different {key}: {states[0][key]} and {state[key]}")
    held = [state["rank"] for state in states]
    if len(set(held)) != len(held):
        raise _fault(f"two of the state_dicts are of rank {max(held, key=held.count)}")
    return states


def _check_fields(number: int, state: Any) -> None:
    """Raises where `state` cannot be what `pack` made."""
    if isinstance(state, Mapping) and isinstance(state.get("format"), int) and state["format"] != _FORMAT:
        raise _fault(f"the state_dict has format {state['format']}, this version reads {_FORMAT}")
    kinds = {"format": int, "type": str, "rank": int, "ranks": int, "steps": int, "state": torch.Tensor}
    wrong = list(kinds) if not isinstance(state, Mapping) else [
        key for key, kind in kinds.items() if not isinstance(state.get(key), kind)
    ]
    if not wrong and not 0 <= state["rank"] < state["ranks"]:
        wrong = ["rank", "ranks"]
    if not wrong and state["state"].dtype != torch.uint8:
        wrong = ["state"]
    if wrong:
        raise _fault(f"state_dict {number} is damaged, in its {', '.join(wrong)}")


def unpack(native: NativeOptimizer, name: str, states: Sequence[Mapping[str, Any]], comm: Communicator) -> None:
    """Loads checked states. Collective."""

    def fill(directory: str) -> None:
        for state in states:
            path = Path(directory) / f"{_file_stem(name)}.rank-{state['rank']}-of-{state['ranks']}.optimizer"
            on_host = state["state"].cpu().contiguous()  # itself, or a copy that must live until it is written
            with path.open("wb") as file:
                file.write(_bytes(on_host))

    with contextlib.ExitStack() as opened:
        with on_all_ranks(comm, "cannot write out its state_dict"):
            directory = opened.enter_context(_filled_directory(sum(2 * state["state"].numel() for state in states), fill))
        native.load(directory, states[0]["steps"])


def _file_stem(name: str) -> str:
    """What the library makes of a name in file names, which cannot hold everything: such characters become %XX."""
    return "".join(f"%{ord(each):02X}" if each in "/%" or each < " " else each for each in name)


def _bytes(tensor: torch.Tensor) -> Any:
    return (ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())


@contextlib.contextmanager
def _filled_directory(size: int, fill: Callable[[str], None]) -> Iterator[str]:
    """A directory into which `fill` has written `size` bytes: in memory if they fit, else where temporary files are.

    That there was room says little, as the other ranks of the machine write at the same time: where `fill` fails in memory,
    it is tried on the disk.
    """
    places = [tempfile.gettempdir()]
    if os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free >= size:
        places.insert(0, _SHARED_MEMORY)
    for place in places:
        with tempfile.TemporaryDirectory(prefix=f"onebit-state-{os.getpid()}-", dir=place) as directory:
            try:
                fill(directory)
            except (OSError, OneBitError):
                if place is places[-1]:
                    raise
                continue
            yield directory
            return


# ---- parameter groups beside files ----


def claim(optimizer: Any, directory: Text) -> None:
    """Raises when another optimizer of this process saves under the same name to `directory`."""
    key = (os.path.realpath(directory), optimizer.name)
    other = _claims.setdefault(key, optimizer)
    if other is not optimizer:
        raise OneBitError(
            Code.INVALID_USAGE,
            f"another optimizer saves as '{optimizer.name}' to {directory}: give one of them another name=",
        )


def _groups_path(directory: Text, name: str) -> Path:
    return Path(directory) / f"{_file_stem(name)}.groups.json"


@contextlib.contextmanager
def saved_groups(directory: Text, name: str, steps: int, groups: List[Dict[str, Any]]) -> Iterator[None]:
    """Writes the groups beside the file of an earlier save, and puts them in its place when what is within has succeeded:
    where groups cannot be written, the state that belongs to the earlier ones is not replaced either."""
    plain = [{key: plain_number(value) for key, value in group.items() if key != "exp_avg_mask"} for group in groups]
    text = json.dumps({"steps": steps, "groups": plain}, default=_not_plain)
    path = _groups_path(directory, name)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield
        unfinished.replace(path)
    except OSError as error:
        raise OneBitError(Code.SYSTEM_ERROR, f"save to {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):  # it is not there, or nothing can be
            unfinished.unlink()


def load_groups(directory: Text, name: str) -> Tuple[int, List[Dict[str, Any]]]:
    """The step at which they were saved, and the groups."""
    path = _groups_path(directory, name)
    try:
        saved = json.loads(path.read_text())
        groups = [{**group, "betas": tuple(group["betas"])} for group in saved["groups"]]
        return int(saved["steps"]), groups
    except FileNotFoundError:
        raise _fault(f"{directory} has no state of an optimizer '{name}': {path} is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _fault(f"{path} is damaged: {error}") from error


def _not_plain(value: Any) -> Any:
    raise OneBitError(
        Code.INVALID_ARGUMENT, f"a parameter group holds a {type(value).__name__}, which save() cannot write"
    )
