"""The package and its example are typed throughout."""

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def test_mypy_in_its_strictest_mode_finds_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=PACKAGE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_so_to_those_who_use_it():
    assert (PACKAGE / "onebit" / "py.typed").exists()
