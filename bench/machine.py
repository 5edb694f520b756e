"""On what it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from bench.peers_c import compiler

PACKAGES = ("trimtab", "numpy", "numba", "llvmlite", "scipy", "polars", "simpy")


def _first_line(*command: str) -> str:
    """First line of what a command prints; empty where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return (done.stdout.splitlines() or [""])[0]


def cpu_model() -> str:
    """The processor, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    on_macos = _first_line("sysctl", "-n", "machdep.cpu.brand_string") if not named else ""
    return named[0] if named else on_macos or platform.processor() or platform.machine()


def machine() -> dict[str, str | int | float]:
    """Processor, cores, memory, system and how busy it was."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of what matters to speed."""
    found = {name: metadata.version(name) for name in PACKAGES}
    c = compiler()
    return {"python": platform.python_version(), **found, "cc": _first_line(c, "--version") if c else "none"}
