"""Communicators for PyTorch: over the store of a process group, or by torchrun's environment.

A process group hands over the unique id and nothing else: data goes over onebit's own connections.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
from typing import Any, Counter, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from onebit._buffers import refuse
from onebit.communicator import Communicator, unique_id
from onebit.errors import Code, OneBitError
from onebit.torch.parameters import refuse_uninitialized

_default: Optional[Communicator] = None
_made: Counter[Tuple[str, str]] = collections.Counter()  # communicators by name and ranks: all ranks count alike


def init(
    group: Any = None,
    name: str = "world",
    settings: Optional[Mapping[str, object]] = None,
    timeout: float = 120.0,
) -> Communicator:
    """A communicator of the ranks of a process group. Collective over them.

    Without a group it is of all ranks: over the store of the default process group where there is one, else by the
    launcher's environment (torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT).

    Args:
        group: a process group, of all or of some ranks and of any backend.
        name: in messages, rules (``comm=...``) and file names.
        settings: ONEBIT_ variables (docs/settings.md) which win over the environment.
        timeout: seconds that ranks wait for the unique id.

    Raises:
        OneBitError: INVALID_USAGE when this rank is not of the group; TIMEOUT when the group's first rank does not come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if group is not None:
            raise refuse("a process group was given, but torch.distributed is not initialised")
        return Communicator.from_environment(name, settings)
    rank = dist.get_rank(group) if group is not None else dist.get_rank()
    if rank < 0:
        raise OneBitError(Code.INVALID_USAGE, f"rank {dist.get_rank()} is not of the group: only its ranks call init")
    members: List[int] = (
        list(range(dist.get_world_size())) if group is None else sorted(dist.distributed_c10d.get_process_group_ranks(group))
    )
    ranks = ",".join(map(str, members))
    _made[name, ranks] += 1
    key = f"onebit/{name}/{ranks}/{_made[name, ranks]}"
    c10d: Any = dist.distributed_c10d
    store = c10d._get_default_store()
    shared_id = _share_unique_id(store, key, members[0], rank == 0, name, timeout)
    try:
        return Communicator.from_unique_id(shared_id, rank, len(members), name, settings)
    finally:
        # All have read it, or need it no more. A store of torchrun's outlives its ranks: those that it starts anew would
        # find the id of dead ones.
        if rank == 0:
            with contextlib.suppress(Exception):  # a store that cannot delete, or is gone
                store.delete_key(key)


def _share_unique_id(store: Any, key: str, leader: int, first: bool, name: str, timeout: float) -> bytes:
    """Hands the unique id of the first member, or why there is none, to the others through the store."""
    if first:
        try:
            made = unique_id()
        except OneBitError as error:
            store.set(key, f"-{error}".encode())
            raise
        store.set(key, b"+" + made)
        return made
    try:
        store.wait([key], datetime.timedelta(seconds=timeout))
        found: bytes = store.get(key)
    except Exception as error:  # the stores raise RuntimeError, newer ones their own types
        raise OneBitError(
            Code.TIMEOUT, f"rank {leader} has not put the id of communicator '{name}' into the store: {error}"
        ) from error
    if found[:1] != b"+":
        raise OneBitError(Code.REMOTE_ERROR, f"rank {leader} could not begin: {found[1:].decode(errors='replace')}")
    return found[1:]


def default_communicator() -> Communicator:
    """The communicator of all ranks that optimizers use unless they are given one; made at the first call. Collective
    then."""
    global _default
    if _default is None or _default.closed:
        _default = init()
    return _default


def broadcast_parameters(parameters: Any, root: int = 0, comm: Optional[Communicator] = None) -> None:
    """Gives parameters (and buffers) the values of rank `root`. Collective.

    DistributedDataParallel does so when it is made; a model without it needs this before the first step.

    Args:
        parameters: a module, or tensors.
    """
    comm = comm or default_communicator()
    held: Mapping[str, Any]
    if isinstance(parameters, torch.nn.Module):
        held = parameters.state_dict()
    else:
        held = {str(number): each for number, each in enumerate(parameters)}
    tensors = {name: each for name, each in held.items() if isinstance(each, torch.Tensor)}  # else it is an extra state
    for name, tensor in tensors.items():
        refuse_uninitialized(f"parameter '{name}'", tensor)
    with torch.no_grad():
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous()
            comm.broadcast(flat.view(-1).view(torch.uint8) if flat.dim() else flat.reshape(1).view(torch.uint8), root)
            if tensor.device.type != "cpu" or flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)
