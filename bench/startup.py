"""Start-up: importing, compiling, loading from the cache, and whole commands on cold and warm caches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Benchmark, Effort, Measured, Skipped, Target, at_most, figure
from trimtab.compiled.kernel_cache import cache_root

ROOT = Path(__file__).resolve().parents[1]
CLI = "from trimtab.cli import main; main()"
LOAD_LOOP = """
import time
from trimtab.engine.calls import compile_all
begun_s = time.perf_counter()
compile_all([])
print(time.perf_counter() - begun_s)
"""
PROFILED = 8  # modules of the import profile that are shown


@dataclass(frozen=True, slots=True)
class Command:
    """The program of a fresh Python."""

    name: str
    code: str
    arguments: tuple[str, ...] = ()
    writes: bool = False  # takes --out


NOTHING = Command("Python itself", "pass")
IMPORT = Command("import trimtab", "import trimtab")
HELP = Command("trimtab --help", CLI, ("--help",))
RUN = Command("trimtab run tiny --policy random", CLI, ("run", "tiny", "--policy", "random"))
TINY = Command("trimtab compare tiny", CLI, ("compare", "tiny"), writes=True)
DEMO = Command("make demo's compare", CLI, ("compare",), writes=True)
WARMUP = Command("trimtab warmup", CLI, ("warmup", "--json"))


class Failed(Exception):  # noqa: N818 - reads as the sentence it makes
    """A command that ended with an exit code other than 0."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs Python in a folder of its own, with one cache of compiled kernels."""

    folder: Path
    cache: Path

    def python(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Raises Failed with the last line of what the command said."""
        environment = {**os.environ, "TRIMTAB_CACHE_DIR": str(self.cache)}
        command = [sys.executable, *options]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or "nothing said").splitlines()[-1]
            raise Failed(f"exit code {done.returncode}: {said}")
        return done

    def wall_s(self, command: Command) -> float:
        out = ("--out", tempfile.mkdtemp(dir=self.folder)) if command.writes else ()
        begun_s = time.perf_counter()
        self.python("-c", command.code, *command.arguments, *out)
        return time.perf_counter() - begun_s

    def with_empty_cache(self) -> Shell:
        return Shell(self.folder, Path(tempfile.mkdtemp(dir=self.folder)))


def _labels(command: Command, cache: str) -> dict[str, str]:
    return {"figure": command.name, "cache": cache}


def warm(command: Command, shell: Shell, repetitions: int, target: Target | None = None) -> Measured:
    """Seconds of a command that has run before."""
    try:
        shell.wall_s(command)
        values = [shell.wall_s(command) for _ in range(repetitions)]
    except Failed as error:
        return Skipped(_labels(command, "warm"), str(error))
    return figure(values, "s", target, **_labels(command, "warm"))


def _cold_then_warm(
    command: Command, shell: Shell, repetitions: int, cold_target: Target, warm_target: Target | None
) -> Iterator[Measured]:
    """Seconds of a command on an empty cache, once, and of its later runs."""
    shell = shell.with_empty_cache()
    try:
        cold_s, *warm_s = [shell.wall_s(command) for _ in range(1 + repetitions)]
    except Failed as error:
        yield Skipped(_labels(command, "cold"), str(error))
        return
    yield figure([cold_s], "s", cold_target, **_labels(command, "cold"))
    yield figure(warm_s, "s", warm_target, **_labels(command, "warm"))


def _cached_load(shell: Shell, repetitions: int) -> Measured:
    """Seconds to load the compiled loop in a second process."""
    shell.python("-c", LOAD_LOOP)
    values = [float(shell.python("-c", LOAD_LOOP).stdout) for _ in range(repetitions)]
    return figure(values, "s", figure="load the loop in a second process", cache="warm")


def _cold_compile(shell: Shell) -> Iterator[Measured]:
    """Seconds to compile everything into an empty cache."""
    begun_s = time.perf_counter()
    try:
        shell.with_empty_cache().python("-c", WARMUP.code, *WARMUP.arguments)
    except Failed as error:
        yield Skipped(_labels(WARMUP, "cold"), str(error))
        return
    took_s = time.perf_counter() - begun_s
    yield figure([took_s], "s", at_most(30), **_labels(WARMUP, "cold"))


def _import_profile(shell: Shell) -> Iterator[Measured]:
    """The modules whose import takes longest within the warm command, imports within them included."""
    try:
        done = shell.python("-X", "importtime", "-c", RUN.code, *RUN.arguments)
    except Failed as error:
        yield Skipped({"figure": f"imports within {RUN.name}"}, str(error))
        return
    lines: Sequence[tuple[str, str]] = re.findall(r"import time:\s*\d+ \|\s*(\d+) \|\s*(\S+)", done.stderr)
    longest = sorted(((int(us) / 1e6, name) for us, name in lines if name.count(".") <= 1), reverse=True)
    for took_s, name in longest[:PROFILED]:
        yield figure([took_s], "s", figure=f"import {name}, within {RUN.name}", cache="warm")


def measure(effort: Effort) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory() as name:
        folder, n = Path(name), effort.repetitions
        shell = Shell(folder, cache_root().absolute())
        yield _cached_load(shell, n)
        for command in (NOTHING, IMPORT, HELP):
            yield warm(command, shell, n)
        yield warm(RUN, shell, n, at_most(1.5))
        yield from _import_profile(shell)
        if effort.is_quick:
            yield Skipped({"cache": "cold"}, "takes minutes, this is a quick run")
            return
        yield from _cold_compile(shell)
        yield from _cold_then_warm(TINY, shell, n, at_most(10), None)
        yield from _cold_then_warm(DEMO, shell, n, at_most(60), at_most(15))


BENCHMARK = Benchmark(
    "startup",
    "Start-up",
    "Wall-clock seconds of whole processes. Cold: nothing has been compiled, measured once; warm: the second "
    "time and later.",
    measure,
    profile="The rows `import …` are the largest parts of the warm command by Python's own import profile, "
    "each with what it imports in turn; the rows `trimtab warmup: …` are the parts of a cold compile.",
)
