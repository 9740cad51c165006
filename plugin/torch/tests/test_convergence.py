"""The programs of perf/ on PyTorch as a person runs them. perf/convergence in its short form: both optimizers learn alike, with
fewer bytes, and all results are written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).resolve().parents[3] / "perf"
PATIENCE = 600  # seconds; only a hang takes so long


def test_the_short_comparison(tmp_path):
    command = [sys.executable, str(PERF / "convergence/run"), "--short", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    exact, onebit = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert (exact["arm"], onebit["arm"]) == ("LAMB", "1-bit LAMB")
    assert onebit["compressed_from"] == 7  # 15 % of 40 steps are warm-up
    for run in (exact, onebit):
        assert len(run["losses"]) == len(run["bytes"]) == 40
        assert run["losses"][-1] < 0.8 * run["losses"][0]
    # The warm-up differs by the correction of the bias only, which LAMB's norms take out almost.
    assert onebit["losses"][:6] == pytest.approx(exact["losses"][:6], rel=0.01)
    assert onebit["losses"][-1] < 1.15 * exact["losses"][-1]
    # Six steps in full and 34 in 1 bit, of which small tensors and headers take a little more than a thirty-second.
    assert 40 / (6 + 34 / 24) < exact["bytes"][-1] / onebit["bytes"][-1] < 40 / (6 + 34 / 32)
    assert "| 1-bit LAMB |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "text-2.png").stat().st_size > 10_000


def test_the_comparison_of_a_step_with_its_c_call():
    command = [sys.executable, str(PERF / "torch_step"), "--width", "64", "--layers", "2", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ratio" in done.stdout
