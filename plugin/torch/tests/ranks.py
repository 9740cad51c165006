"""Ranks as forked processes of a test: each runs a function with RANK, WORLD_SIZE and so on set, as torchrun would.

Forking keeps what the parent has imported, so a rank starts in milliseconds. Invariant: no rank outlives its test.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

PATIENCE = 60  # seconds; only a hang takes so long

_context = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Failed(AssertionError):
    """A rank raised, died or did not end; `text` is what it said."""


def _rank_main(connection: Any, body: Callable[..., Any], rank: int, environment: Dict[str, str], arguments: Any) -> None:
    os.environ.update(environment)
    try:
        outcome = ("ok", body(rank, *arguments))
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    connection.send_bytes(pickle.dumps(outcome))
    connection.close()
    os._exit(0)


def run(ranks: int, body: Callable[..., Any], *arguments: Any, dead: Optional[List[int]] = None, **environment: str) -> List[Any]:
    """What body(rank, *arguments) returned on each rank.

    Args:
        dead: ranks that will kill themselves; their result is None.
        environment: further variables of the ranks.

    Raises:
        Failed: with the traceback of the first rank that raised.
    """
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ONEBIT_INIT_TIMEOUT": "30",
        "ONEBIT_TIMEOUT": "30",
        "ONEBIT_THREADS": "1",
        "ONEBIT_MIN_SIZE": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        **environment,
    }
    started = []
    for rank in range(ranks):
        ours, theirs = _context.Pipe(duplex=False)
        own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = _context.Process(target=_rank_main, args=(theirs, body, rank, own, arguments))
        process.start()
        theirs.close()
        started.append((process, ours))
    results: List[Any] = []
    failures = []
    end = time.monotonic() + PATIENCE
    try:
        for rank, (process, pipe) in enumerate(started):
            outcome = None
            try:
                if pipe.poll(max(0.0, end - time.monotonic())):
                    outcome = pickle.loads(pipe.recv_bytes())
                else:
                    failures.append(f"rank {rank} did not end in {PATIENCE} s")
            except EOFError:
                if dead is None or rank not in dead:
                    failures.append(f"rank {rank} died")
            if outcome is not None and outcome[0] == "raised":
                failures.append(f"rank {rank} raised:\n{outcome[1]}")
            results.append(outcome[1] if outcome is not None and outcome[0] == "ok" else None)
    finally:
        for process, _ in started:
            if process.is_alive() and failures:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
    if failures:
        raise Failed("\n".join(failures))
    return results


def error_of(action: Callable[[], Any]) -> str:
    """The text of what `action` raises, with the name of its type."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")
