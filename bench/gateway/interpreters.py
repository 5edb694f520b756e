"""Another Python for the proxies that are written in it: how one is built is worth a quarter of their time.

Distributions and official images build Python with profile-guided optimization; a plain `./configure && make`
does not.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from bench.gateway.proxies import Proxy
from bench.startup import ROOT

_SAYS = (
    "import platform; print(platform.python_version(), *platform.python_build(), platform.python_compiler())"
)


def build_of(python: str) -> str:
    """Version and build of an interpreter, as it says itself."""
    return subprocess.run([python, "-c", _SAYS], capture_output=True, text=True, check=True).stdout.strip()


def run_by(proxy: Proxy, python: str) -> Proxy:
    """The same proxy under another interpreter, of the same minor version; one in another language stays.

    Its packages are those of the environment that it was installed in.
    """
    if proxy.python_env is None:
        return proxy
    packages = sysconfig.get_path("purelib", vars={"base": str(proxy.python_env)})
    paths = [str(ROOT / "src"), packages]

    def command(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
        _, *rest = proxy.command(folder, port, backends)
        return [python, *rest]

    environment = {**proxy.environment, "PYTHONPATH": os.pathsep.join(paths)}
    return dataclasses.replace(proxy, command=command, environment=environment)
