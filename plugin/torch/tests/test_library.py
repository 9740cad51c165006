"""How libonebit.so is found, and what is said when it is not, or is another one."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import onebit
import pytest

PACKAGE = Path(__file__).resolve().parent.parent
ASK = "import onebit; print(onebit.library_path(), onebit.version())"


def ask(package=PACKAGE, **environment):
    """(exit status, output) of a process that loads the library."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("ONEBIT_LIBRARY", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**inherited, "PYTHONPATH": str(package), **environment},
        cwd="/",
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture()
def library():
    return Path(onebit.library_path()).resolve()


@pytest.fixture()
def lonely(tmp_path):
    """A copy of the package outside the source tree."""
    shutil.copytree(PACKAGE / "onebit", tmp_path / "here" / "onebit")
    return tmp_path / "here"


def compile_library(path, source):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source, text=True, check=True)
    return str(path)


def test_the_variable_names_it(lonely, library):
    assert ask(lonely, ONEBIT_LIBRARY=str(library)) == (0, f"{library} (0, 1, 0)\n")


def test_it_lies_beside_the_package(lonely, library):
    shutil.copy(library, lonely / "onebit" / "libonebit.so")
    assert ask(lonely) == (0, f"{lonely}/onebit/libonebit.so (0, 1, 0)\n")


def test_it_lies_in_the_build_tree(tmp_path, library):
    package = tmp_path / "plugin" / "torch"
    shutil.copytree(PACKAGE / "onebit", package / "onebit")
    for place in ("build/release/lib", "include/onebit"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "include/onebit/onebit.h").touch()
    shutil.copy(library, tmp_path / "build/release/lib/libonebit.so")
    assert ask(package) == (0, f"{tmp_path}/build/release/lib/libonebit.so (0, 1, 0)\n")


def test_the_loader_finds_it(lonely, library, tmp_path):
    shutil.copy(library, tmp_path / "libonebit.so.0.1")
    assert ask(lonely, LD_LIBRARY_PATH=str(tmp_path)) == (0, "libonebit.so.0.1 (0, 1, 0)\n")


def test_not_found_names_all_that_was_tried(lonely):
    status, said = ask(lonely)
    assert status != 0
    for word in (f"{lonely}/onebit/libonebit.so", "libonebit.so.0.1", "ONEBIT_LIBRARY", "LibraryNotFoundError"):
        assert word in said


def test_a_wrong_path_in_the_variable_is_not_passed_over(lonely, library):
    shutil.copy(library, lonely / "onebit" / "libonebit.so")
    status, said = ask(lonely, ONEBIT_LIBRARY="/nowhere/libonebit.so")
    assert status != 0 and "/nowhere/libonebit.so" in said and "ONEBIT_LIBRARY" in said


def test_another_version_is_refused_with_both_numbers(lonely, tmp_path):
    other = compile_library(tmp_path / "other.so", "int onebitGetVersion(int* v) { *v = 203; return 0; }")
    status, said = ask(lonely, ONEBIT_LIBRARY=other)
    assert status != 0 and "onebit 0.2.3" in said and "0.1.0" in said


def test_a_library_of_older_sources_is_refused_with_what_it_lacks(lonely, tmp_path):
    old = compile_library(tmp_path / "old.so", "int onebitGetVersion(int* v) { *v = 100; return 0; }")
    status, said = ask(lonely, ONEBIT_LIBRARY=old)
    assert status != 0 and "onebitOptimizerStep" in said


def test_errors_survive_being_pickled():
    for error in (onebit.OneBitError(onebit.Code.TIMEOUT, "rank 1"), onebit.LibraryNotFoundError("not there")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_some_other_library_is_refused(lonely, tmp_path):
    stranger = compile_library(tmp_path / "stranger.so", "int hello(void) { return 0; }")
    status, said = ask(lonely, ONEBIT_LIBRARY=stranger)
    assert status != 0 and "is not libonebit.so" in said
