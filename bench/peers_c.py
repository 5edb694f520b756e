"""The C loop: compiled at run time by whatever C compiler there is."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.work import SLOTS
from trimtab.experiments.scenario.build import RunInputs

SOURCE, FLAGS = Path(__file__).with_name("slots.c"), ("-O3", "-shared", "-fPIC")
POLICY_NUMBERS = {"round-robin": 0, "power-of-d": 1}
_FLOATS, _INTS = np.ctypeslib.ndpointer("f8", flags="C"), np.ctypeslib.ndpointer("i8", flags="C")


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def _library() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "slots.so"
        subprocess.run([str(compiler()), *FLAGS, "-o", str(library), str(SOURCE)], check=True)
        loaded = ctypes.CDLL(str(library))
    word = ctypes.c_int64
    loaded.simulate.argtypes = [
        *(ctypes.c_int, ctypes.c_uint64, word, word, ctypes.c_int32),
        *(_FLOATS, _FLOATS, _FLOATS, _FLOATS, _INTS),
    ]
    return loaded


def run_c(built: RunInputs, policy: str) -> tuple[float, float]:
    """Processor seconds and mean completion."""
    work, n = built.requests.work, len(built.requests)
    arrival_s, units = np.ascontiguousarray(work["arrival_s"]), np.ascontiguousarray(work["units"])
    unit_s = np.ascontiguousarray(built.cluster.unit_s[0][built.cluster.type_idx])
    finish_s, node_idx, simulate = np.zeros(n), np.zeros(n, "i8"), _library().simulate
    begun_s = time.process_time()
    failed = simulate(
        *(POLICY_NUMBERS[policy], 0, n, len(unit_s), SLOTS), arrival_s, units, unit_s, finish_s, node_idx
    )
    took_s = time.process_time() - begun_s
    if failed:
        raise MemoryError("the C loop found no memory")
    return took_s, float((finish_s - arrival_s).mean())
