"""`python -m trimtab_kernels` compiles all kernels into this package, for each level of this architecture."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from trimtab.compiled.kernel_cache import LEVELS, pack

HERE = Path(__file__).parent

for level in LEVELS[platform.machine()]:
    print(f"kernels for {level}", flush=True)
    wanted = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "TRIMTAB_CACHE_DIR": str(HERE)}
    subprocess.run([sys.executable, "-m", "trimtab", "warmup"], env=os.environ | wanted, check=True)
for folder in HERE.glob("kernels-*"):
    pack(folder)
