"""Tables and pictures of what the trainings gave."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Dict, List, Tuple

from arms import ARMS
from tasks import TASKS
from training import Run


def grouped(runs: List[Run]) -> Dict[Tuple[str, int, str], List[Run]]:
    """Runs by task, ranks and arm."""
    groups: Dict[Tuple[str, int, str], List[Run]] = {}
    for run in runs:
        groups.setdefault((run.task, run.ranks, run.arm), []).append(run)
    return groups


def spread(values: List[float]) -> float:
    """Standard deviation; NaN where a training has diverged."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(runs: List[Run]) -> str:
    """Markdown: for each task and number of ranks a row an arm, with its ratios to its baseline."""
    groups = grouped(runs)
    text = []
    for task in TASKS:
        for ranks in sorted({key[1] for key in groups if key[0] == task.name}):
            own = {arm.name: groups[task.name, ranks, arm.name] for arm in ARMS if (task.name, ranks, arm.name) in groups}
            seeds = max(len(each) for each in own.values())
            steps = len(next(iter(own.values()))[0].losses)
            text += [
                f"{task.title}, {ranks} ranks, {steps} steps, {seeds} seeds:",
                "",
                "| optimizer | final loss | against baseline | test loss | compressed from step | sent by a rank | fewer than baseline |",
                "|---|---|---|---|---|---|---|",
            ]
            text += [row(arm, own) for arm in ARMS if arm.name in own] + [""]
    return "\n".join(text)


def row(arm: Any, own: Dict[str, List[Run]]) -> str:
    mine, baseline = own[arm.name], own.get(arm.baseline)
    final = [run.final_loss() for run in mine]
    sent = statistics.mean(run.bytes[-1] for run in mine)
    against = fewer = "–"
    if baseline is not None and arm.name != arm.baseline:
        theirs = statistics.mean(run.final_loss() for run in baseline)
        against = f"{100 * (statistics.mean(final) / theirs - 1):+.2f} %"
        fewer = f"{statistics.mean(run.bytes[-1] for run in baseline) / sent:.2f} x"
    if any(not run.final_loss() < 10 * run.losses[0] for run in mine):
        return f"| {arm.name} | **diverged** | – | – | – | {sent / 2**20:.2f} MiB | {fewer} |"
    begins = sorted({str(run.compressed_from) for run in mine if run.compressed_from is not None}, key=int)
    tests = [run.test_loss for run in mine]
    return (
        f"| {arm.name} | {statistics.mean(final):.4f} ± {spread(final):.4f} | {against} | "
        f"{statistics.mean(tests):.4f} ± {spread(tests):.4f} | {', '.join(begins) or '–'} | {sent / 2**20:.2f} MiB | {fewer} |"
    )


def smooth(values: List[float], width: int = 10) -> List[float]:
    """The mean of each value and those before it."""
    return [statistics.mean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def plot(runs: List[Run], folder: Path) -> List[Path]:
    """One picture a task and number of ranks: mean loss with its range over the seeds, over steps and over bytes sent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = grouped(runs)
    files = []
    for task in TASKS:
        for ranks in sorted({key[1] for key in groups if key[0] == task.name}):
            figure, (over_steps, over_bytes) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
            lowest, highest = math.inf, 0.0
            for number, arm in enumerate(ARMS):
                mine = groups.get((task.name, ranks, arm.name))
                if mine is None:
                    continue
                style = {"color": pyplot.cm.tab20(number / 20), "linewidth": 1.5 if arm.main else 1, "linestyle": "-" if arm.main else ":"}
                curves = list(zip(*(smooth(run.losses) for run in mine)))
                mean = [statistics.mean(each) for each in curves]
                over_steps.plot(range(1, len(mean) + 1), mean, label=arm.name, **style)
                low, high = [min(each) for each in curves], [max(each) for each in curves]
                over_steps.fill_between(range(1, len(mean) + 1), low, high, color=style["color"], alpha=0.15, linewidth=0)
                sent = [statistics.mean(each) / 2**20 for each in zip(*(run.bytes for run in mine))]
                over_bytes.plot(sent, mean, **style)
                lowest, highest = min([lowest, *filter(math.isfinite, mean)]), max(highest, mean[0])
            over_steps.set(xlabel="step", ylabel="loss (mean of 10 steps)", yscale="log", title=f"{task.title}, {ranks} ranks")
            over_bytes.set(xlabel="MiB sent by a rank", xscale="log")
            over_steps.set_ylim(0.95 * lowest, 1.1 * highest)  # what diverges leaves the picture
            over_steps.legend(fontsize=8)
            figure.tight_layout()
            files.append(folder / f"{task.name}-{ranks}.png")
            figure.savefig(files[-1], dpi=80)
            pyplot.close(figure)
    return files
