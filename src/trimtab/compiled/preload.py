"""Loads the modules of numba that every kernel needs, without scipy."""

from __future__ import annotations

import functools
import sys
import types

from numba.core.registry import cpu_target


@functools.cache
def preload_numba() -> None:
    """Load numba's modules now, but not scipy: numba only checks that scipy is installed.

    Stand-in modules pass the check, which saves start-up time and memory. A kernel that multiplies matrices
    finds the real modules when it is compiled.
    """
    names = [name for name in ("scipy.linalg", "scipy.linalg.cython_blas") if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    try:
        cpu_target.target_context.refresh()
    finally:
        for name in names:
            del sys.modules[name]
