"""A communication hook that compresses the gradients of DistributedDataParallel, for jobs that keep their optimizer.

Each bucket is a tensor with a tag of its own, averaged on a communicator of the hook's own by one thread, so that the
exchange goes on while backward does. Invariant: buckets go in the order in which DDP hands them over, which is equal on
all ranks. The first calls of each bucket are exact: DDP orders its buckets anew after the first.
"""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from typing import Any, Dict, Optional, Tuple

import torch
from onebit._abi import ReduceOp
from onebit._buffers import refuse
from onebit.communicator import Communicator
from onebit.torch import cuda
from onebit.torch import group as groups
from onebit.torch.data_parallel import find_optimizers

_Item = Tuple[torch.Tensor, cuda.Arrival, Optional[str], Any]  # a bucket, where it is ready, its tag in 1 bit, its future

# Optimizers that divide by a variance of the gradient.
_ADAPTIVE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "LAMB", "NAdam", "RAdam", "RMSprop", "SparseAdam")

live: "weakref.WeakSet[HookState]" = weakref.WeakSet()
"""All states of the process."""


class HookState:
    """What `ddp_hook` keeps for a model: its communicator, and how often each bucket has come.

    Attributes:
        comm: the communicator, whose residuals belong into a checkpoint (``save_residuals``, ``load_residuals``).
        decisions: why the last call of each tag went as it did.
    """

    def __init__(
        self,
        process_group: Any = None,
        warmup_calls: int = 10,
        name: str = "ddp",
        settings: Optional[Dict[str, object]] = None,
    ) -> None:
        """Collective over the process group.

        Args:
            process_group: that of the model; by default all ranks.
            warmup_calls: how many calls of each bucket are exact before it is compressed, from 1.
            name: of the communicator, in messages, tags and files.
            settings: ONEBIT_ variables which win over the environment.
        """
        if warmup_calls < 1:
            raise refuse(f"warmup_calls is {warmup_calls}; it must be from 1, as DDP orders its buckets anew after the first")
        self.warmup_calls = warmup_calls
        self.comm: Communicator = groups.init(process_group, name, settings)
        self.decisions: Dict[str, str] = {}
        self._calls: Dict[str, int] = {}
        self._looked = False
        self._waiting: "queue.SimpleQueue[Optional[_Item]]" = queue.SimpleQueue()
        arguments = (self.comm, self._waiting, self.decisions)
        self._thread = threading.Thread(target=_exchange, args=arguments, daemon=True, name=f"onebit {name}")
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._waiting.put, None)  # a state that goes without close() ends its thread
        live.add(self)

    def close(self) -> None:
        """Ends the thread and the communicator. Not while a backward is under way."""
        self._finalizer()
        self._thread.join()
        self.comm.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a HookState can neither be pickled nor copied: make one for each model; comm.save_residuals saves it")

    def reduce(self, bucket: Any) -> Any:
        """A future of the mean of a bucket's gradients."""
        buffer: torch.Tensor = bucket.buffer()
        tag = f"{self.comm.name}.bucket{bucket.index()}"
        call = self._calls[tag] = self._calls.get(tag, 0) + 1
        compressed = call > self.warmup_calls
        if not compressed:
            self.decisions[tag] = f"exact: call {call} of {self.warmup_calls} of the warm-up"
        elif not self._looked:
            self._looked = True
            _warn_of_adaptive(bucket.parameters())
        done = cuda.future_of(buffer)
        self._waiting.put((buffer, cuda.Arrival(buffer), tag if compressed else None, done))
        return done


def ddp_hook(state, bucket):  # type: ignore[no-untyped-def]
    """Averages a bucket in 1 bit: ``model.register_comm_hook(onebit.torch.HookState(), onebit.torch.ddp_hook)``.

    For optimizers that are linear in the gradient: SGD, with momentum or without. Adam's variance is made of the squares of
    what it gets, and those of one bit say nothing about the gradient: use `OneBitAdam` instead. A warning says so when such
    an optimizer is found.

    Args:
        state: a `HookState`.
        bucket: the gradients of some parameters, handed over by DDP.
    """
    # Without annotations: DDP would compare them with its own.
    return state.reduce(bucket)


def _exchange(
    comm: Communicator,
    waiting: "queue.SimpleQueue[Optional[_Item]]",
    decisions: Dict[str, str],
) -> None:
    """The thread of a state: averages what comes, in its order; what is on a CUDA device by way of the host. A failure goes to
    whoever waits for the future."""
    staging: Dict[torch.device, cuda.Staging] = {}

    def average(buffer: torch.Tensor, tag: Optional[str]) -> None:
        if tag is not None:
            decisions[tag] = comm.explain(buffer, ReduceOp.AVG, tag)
        comm.allreduce(buffer, ReduceOp.AVG, tag)

    while True:
        item = waiting.get()
        if item is None:
            return
        buffer, arrival, tag, done = item
        try:
            if arrival.device is None:
                average(buffer, tag)
                done.set_result(buffer)
                continue
            if arrival.device not in staging:
                staging[arrival.device] = cuda.Staging(arrival.device)
            own = staging[arrival.device]
            with own.on_host(buffer, arrival) as host:
                average(host, tag)
            with own.current():
                done.set_result(buffer)
        except Exception as error:
            done.set_exception(error)


def _warn_of_adaptive(parameters: Any) -> None:
    for optimizer in find_optimizers(parameters):
        kind = type(optimizer).__name__
        if kind in _ADAPTIVE:
            warnings.warn(
                f"{kind} steps on gradients that are compressed to 1 bit: its variance is then that of the compression, and "
                "training may stall or diverge. Use onebit.torch.OneBitAdam or OneBitLamb without the hook, or SGD with it",
                stacklevel=2,
            )
