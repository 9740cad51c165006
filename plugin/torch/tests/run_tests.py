#!/usr/bin/env python3
"""Runs one file of tests for ctest: status 77 where Python packages that it needs are not installed, so that it counts as
skipped and not as passed.

  run_tests.py FILE [pytest's arguments]
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Files that do without PyTorch.
WITHOUT_TORCH = {"test_core.py", "test_device.py", "test_library.py"}
FURTHER = {
    "test_convergence.py": ["tqdm", "matplotlib"],
    "test_example.py": ["tqdm", "matplotlib"],
    "test_install.py": ["pip", "setuptools"],
    "test_typing.py": ["mypy"],
}


def main() -> int:
    name = sys.argv[1]
    needed = ["pytest"] + ([] if name in WITHOUT_TORCH else ["torch"]) + FURTHER.get(name, [])
    missing = [each for each in needed if importlib.util.find_spec(each) is None]
    if missing:
        print(f"skipped: {sys.executable} has no {', '.join(missing)} (on Debian: ./quickstart torch)")
        return 77
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name), *sys.argv[2:]]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
