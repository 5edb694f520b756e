"""Numba wakes without scipy, and kernels that multiply matrices are compiled and run as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNELS = """
from trimtab.compiled.kernel import kernel

@kernel
def product(a, b):
    return (a @ b)[0, 0]
"""
USE = """
import sys
import numpy as np
from trimtab.compiled.numba_extras import preload_numba
preload_numba()
assert not any(name.startswith("scipy.linalg") for name in sys.modules)
from products import product
a = np.arange(4.0).reshape(2, 2)
assert product(a, a + 1.0) == 3.0  # (0 1) (1 2 / 3 4)
hits, misses = (sum(counts.values()) for counts in (product.stats.cache_hits, product.stats.cache_misses))
import scipy.linalg
print(hits, misses, scipy.linalg.norm(a[0]))
"""


def test_numba_wakes_without_scipy_compiles_and_loads_what_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "products.py").write_text(KERNELS)
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join([source, str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "TRIMTAB_CACHE_DIR": str(tmp_path / "cache")}

    def said() -> str:
        command = [sys.executable, "-W", "ignore", "-c", USE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert said() == "0 1 1.0"
    assert said() == "1 0 1.0"
