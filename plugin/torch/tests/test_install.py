"""The package can be installed by pip, without the network, and found with the library beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onebit

PACKAGE = Path(__file__).resolve().parent.parent


def test_pip_installs_it(tmp_path):
    library = Path(onebit.library_path()).resolve()
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache", "build", "*.egg-info"))
    shutil.copy(library, source / "onebit" / "libonebit.so")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--target", str(target)]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    inherited = {key: value for key, value in os.environ.items() if key not in ("ONEBIT_LIBRARY", "PYTHONPATH")}
    said = subprocess.run(
        [sys.executable, "-c", "import onebit, onebit.torch; print(onebit.library_path())"],
        env={**inherited, "PYTHONPATH": str(target)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip() == str(target / "onebit" / "libonebit.so"), said.stderr
