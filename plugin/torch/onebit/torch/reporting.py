"""What onebit has done in this process so far, as text and as a dict: for people, logs and dashboards."""

from __future__ import annotations

from typing import Any, Dict, List

from onebit.communicator import Communicator, live as live_communicators
from onebit.torch import hook as hooks
from onebit.torch import optimizer as optimizers
from onebit.torch.optimizer import OneBitOptimizer


class Report:
    """A report. ``str()`` gives the text, `as_dict` plain numbers and texts.

    Of each communicator: bytes sent and received, what fp32 (or whatever type was given) would have sent the exact way, the
    ratio of the two, calls by way, where the time of those in 1 bit went, memory and L2 norms of residuals. Of each
    optimizer: its stage and why, steps, memory, L2 norms of its residuals, bytes that its steps sent in full precision and
    otherwise, the ratio of fp32 steps to that, and who carries them: its communicator, or NCCL, which is in no communicator's
    numbers and whose bytes are computed. Of each hook: why the last call of each bucket went as it did.
    """

    def __init__(self) -> None:
        communicators = sorted((each for each in live_communicators if not each.closed), key=lambda each: each.name)
        self._content: Dict[str, List[Dict[str, Any]]] = {
            "communicators": [_communicator(each) for each in communicators],
            "optimizers": [
                _optimizer(each)
                for each in sorted(optimizers.live, key=lambda each: each.name)
                if not each.comm.closed and not each.closed
            ],
            "hooks": [
                {"name": each.comm.name, "warmup_calls": each.warmup_calls, "decisions": dict(sorted(each.decisions.items()))}
                for each in sorted(hooks.live, key=lambda each: each.comm.name)
                if not each.comm.closed
            ],
        }

    def as_dict(self) -> Dict[str, List[Dict[str, Any]]]:
        return self._content

    def __str__(self) -> str:
        lines = []
        for each in self._content["communicators"]:
            lines.append(
                f"communicator '{each['name']}', rank {each['rank']} of {each['ranks']}: "
                f"{_size(each['wire_bytes_sent'])} sent, {_size(each['wire_bytes_received'])} received"
            )
            calls = f"{each['compressed_calls']} calls in 1 bit, {each['exact_calls']} exact"
            ratio = f", {each['ratio']:.1f} times less than all exact" if each["ratio"] is not None else ""
            lines.append(f"  {calls}{ratio}; residuals of tags take {_size(each['residual_bytes'])}")
            if each["compressed_ns"] > 0:
                lines.append("  " + _times(each))
            if each["residual_bytes"] > 0:
                lines.append("  " + _norms(each["residual_norm"]))
            if each["failure"] is not None:
                lines.append(f"  unusable: {each['failure']}")
        for each in self._content["optimizers"]:
            lines.append(f"{each['type']} '{each['name']}': step {each['steps']}, {each['skipped_steps']} skipped")
            lines.append(f"  {each['decision']}; state takes {_size(each['memory'])}")
            if each["ratio"] is not None:
                over = "NCCL (computed)" if each["carrier"] == "nccl" else f"communicator '{each['communicator']}'"
                lines.append(
                    f"  {_size(each['full_bytes'])} sent in full-precision steps, {_size(each['compressed_bytes'])} in others, over "
                    f"{over}: {each['ratio']:.1f} times less than in fp32"
                )
            if any(each["residual_norm"]):
                lines.append("  " + _norms(each["residual_norm"]))
        for each in self._content["hooks"]:
            lines.append(f"hook '{each['name']}':")
            lines += [f"  {tag}: {why}" for tag, why in each["decisions"].items()]
        return "\n".join(lines) or "onebit: nothing has been made yet"


def report() -> Report:
    """A report of all communicators, optimizers and hooks of this process. Communicates nothing."""
    return Report()


def _communicator(comm: Communicator) -> Dict[str, Any]:
    stats = comm.stats()
    # An exact allreduce sends 2 (W-1)/W of the buffer.
    exact = stats["reduced_bytes"] * 2 * (comm.size - 1) // comm.size
    sent = stats["wire_bytes_sent"]
    failure = comm.failure()
    return {
        "name": comm.name,
        "rank": comm.rank,
        "ranks": comm.size,
        **stats,
        "residual_norm": comm.residual_norm(),
        "exact_bytes": exact,
        "ratio": exact / sent if sent > 0 and exact > 0 else None,
        "failure": None if failure is None else failure.name,
    }


def _optimizer(optimizer: OneBitOptimizer) -> Dict[str, Any]:
    info = optimizer.info()
    return {
        "name": optimizer.name,
        "type": optimizer.kind,
        "communicator": optimizer.comm.name,
        **info._asdict(),
        "ratio": info.ratio,
        "decision": optimizer.decision(),
        "carrier": optimizer.carrier(),
        "residual_norm": optimizer.residual_norm(),
    }


def _times(stats: Dict[str, Any]) -> str:
    """Computing is added up over threads; waiting is of the calls' own time."""
    whole, encode, average, decode, waiting = (
        stats[f"{name}_ns"] / 1e9 for name in ("compressed", "encode", "average", "decode", "waiting")
    )
    return (
        f"calls in 1 bit took {whole:.3f} s: encode {encode:.3f}, average {average:.3f}, decode {decode:.3f} (of all threads); "
        f"wire and late ranks {waiting:.3f}"
    )


def _norms(norms: Any) -> str:
    return f"norm of the residuals: {norms[0]:.4g} of this rank's tensors, {norms[1]:.4g} of its partitions"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
