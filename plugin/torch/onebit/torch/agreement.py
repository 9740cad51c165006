"""What ranks must have in common before the first step, found out by checksums: a few bytes a tensor, once."""

from __future__ import annotations

import warnings
from typing import List, Optional, Sequence

import torch
from onebit.communicator import Communicator
from onebit.errors import Code, OneBitError
from onebit.torch.parameters import digest


def compare_ranks(
    comm: Communicator,
    names: Sequence[str],
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[Optional[torch.Tensor]],
) -> None:
    """Compares the values of parameters between ranks. Collective.

    Warns when the gradients are equal on all ranks: somebody else has reduced them, or all read the same data.

    Raises:
        OneBitError: INVALID_USAGE naming the first parameter that differs, and the rank. Ranks with other tensors are left
            to the library, which says more about them.
    """
    if comm.size == 1:
        return
    mine = torch.tensor([digest(each) for each in parameters], dtype=torch.int64)
    own = torch.tensor([digest(each) for each in gradients if each is not None], dtype=torch.int64)
    shapes = torch.tensor([digest_of_text(name) for name in names], dtype=torch.int64)
    brief = torch.tensor([len(parameters), digest(shapes), digest(mine), digest(own), len(own)], dtype=torch.int64)
    all_brief = comm.allgather(brief, torch.empty(comm.size, len(brief), dtype=torch.int64))
    if bool((all_brief[:, :2] != all_brief[0, :2]).any()):
        return
    if bool((all_brief[:, 2] != all_brief[0, 2]).any()):
        everywhere = comm.allgather(mine, torch.empty(comm.size, len(mine), dtype=torch.int64))
        rank, index = (everywhere != everywhere[0]).nonzero()[0].tolist()
        raise OneBitError(
            Code.INVALID_USAGE,
            f"parameter '{names[index]}' has other values on rank {rank} than on rank 0: seed all ranks alike, wrap the model "
            "in DistributedDataParallel, or call onebit.torch.broadcast_parameters(model) before the first step",
        )
    if len(own) != 0 and bool((all_brief[:, 3:] == all_brief[0, 3:]).all()):
        warnings.warn(
            "the gradients are the same on all ranks: if something reduces them before step(), remove it, as the optimizer "
            "averages them itself; else all ranks read the same data (is there a DistributedSampler?)",
            stacklevel=3,
        )


def digest_of_text(text: str) -> int:
    return digest(torch.tensor(list(text.encode()), dtype=torch.uint8))
