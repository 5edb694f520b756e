"""A kernel that does not compile is reported once, by the user's own file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.compiled import kernel_cache

SOURCE = """
from trimtab.compiled.kernel import helper, kernel

def plain(x):
    return x + 1

@helper
def inner(x):
    return x.nothing  # this

@kernel
def calls_plain(x):
    y = x + 1
    return plain(y)  # this

@kernel
def calls_inner(x):
    return inner(x)

@kernel
def keeps_the_error(x):
    try:
        return x
    except ValueError as error:  # this
        return 0
"""
RUN = """
import sys, numba, broken
from trimtab.compiled.compiling import compile_kernel
from trimtab.errors import KernelError
try:
    compile_kernel(getattr(broken, sys.argv[1]), numba.int64(numba.int64))
except KernelError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "nth", "reason"),
    [("calls_plain", 1, "plain"), ("calls_inner", 0, "nothing"), ("keeps_the_error", 2, "Exception object")],
)
def test_the_error_names_file_and_line(name: str, nth: int, reason: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(SOURCE)
    lines = [k for k, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# this")]
    package = Path(kernel_cache.__file__).resolve().parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(package), str(tmp_path)]),
        "TRIMTAB_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", RUN, name]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    first, line = done.stdout.splitlines()
    assert first.startswith(f"kernel {name} does not compile: broken.py:{lines[nth]}: ")
    assert reason in first
    assert line.endswith("# this")
