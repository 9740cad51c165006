"""examples/train.py as a person runs it, by torchrun: it learns, draws, resumes on other numbers of ranks, and goes on after
a rank was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import free_port

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train.py"
PATIENCE = 240  # seconds; only a hang takes so long
SMALL = ["--width", "16", "--layers", "1", "--batch", "12", "--save-every", "10", "--freeze-step", "15"]


def start(ranks, *options, torchrun=()):
    """A job in a process group of its own."""
    # -r, -t: torchrun of PyTorch 1.13 fails without them on Python 3.11.
    launcher = ["-m", "torch.distributed.run", "-r", "1", "-t", "1", "--nproc_per_node", str(ranks), "--master_port", str(free_port())]
    command = [sys.executable, *launcher, *torchrun, str(EXAMPLE), *SMALL, *map(str, options)]
    environment = {**os.environ, "ONEBIT_THREADS": "1", "ONEBIT_MIN_SIZE": "0"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment)


def finish(job):
    """What the job said, and its exit status."""
    try:
        output, _ = job.communicate(timeout=PATIENCE)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    return output, job.returncode


def run(ranks, *options):
    output, status = finish(start(ranks, *options))
    assert status == 0, output
    return output


def history(checkpoint):
    return json.loads((checkpoint / "latest.json").read_text())


def test_it_learns_draws_and_resumes_on_another_number_of_ranks(tmp_path):
    checkpoint, plot = tmp_path / "run", tmp_path / "loss.png"
    output = run(2, "--steps", 30, "--checkpoint", checkpoint)
    assert "1bit: the variance is frozen" in output and "test loss" in output
    assert sorted(each.name for each in checkpoint.iterdir()) == ["latest.json", "step-30"]
    output = run(3, "--steps", 40, "--checkpoint", checkpoint, "--plot", plot)
    assert "going on from step 30" in output and "OneBitLamb 'optimizer': step 40" in output
    done = history(checkpoint)
    assert len(done["losses"]) == len(done["bytes"]) == done["step"] == 40
    assert sum(done["losses"][-5:]) < sum(done["losses"][:5])
    assert done["bytes"] == sorted(done["bytes"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_it_takes_a_deepspeed_configuration(tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 2e-3, "var_freeze_step": 5}}}))
    assert "ZeroOneAdam 'optimizer': step 8" in run(1, "--steps", 8, "--deepspeed-config", config)


def workers_of(job):
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return [int(each) for each in children if EXAMPLE.name in Path(f"/proc/{each}/cmdline").read_text()]


def test_after_a_rank_was_killed_torchrun_restarts_it_from_the_last_checkpoint(tmp_path):
    checkpoint = tmp_path / "run"
    job = start(2, "--steps", 2000, "--checkpoint", checkpoint, torchrun=["--max_restarts", "1"])
    end = time.monotonic() + PATIENCE
    while not (checkpoint / "latest.json").exists() and time.monotonic() < end and job.poll() is None:
        time.sleep(0.1)
    first = history(checkpoint)["step"]
    victims = workers_of(job)
    assert len(victims) == 2
    os.kill(victims[1], signal.SIGKILL)
    while history(checkpoint)["step"] <= first + 20 and time.monotonic() < end and job.poll() is None:
        time.sleep(0.1)
    survivors = workers_of(job)
    os.killpg(job.pid, signal.SIGTERM)
    output, _ = finish(job)
    (resumed,) = re.findall(r"going on from step (\d+)", output)
    assert int(resumed) >= first and int(resumed) % 10 == 0
    assert not set(survivors) & set(victims)
    done = history(checkpoint)
    assert len(done["losses"]) == done["step"] > int(resumed)


@pytest.mark.parametrize("kind", ["Lamb", "Adam", "OneBitAdam"])
def test_other_optimizers_run(kind):
    assert f"{kind} 'optimizer': step 4" in run(1, "--steps", 4, "--optimizer", kind)
