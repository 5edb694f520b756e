"""Processes on a core of their own, with what they have used of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from bench.startup import ROOT

PROXY_CORE, LOAD_CORE = 0, 1
STOP_TIMEOUT_S = 10.0


def start(core: int, command: Sequence[str], log: IO[bytes], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command that may run on this core only."""
    return subprocess.Popen(
        ["taskset", "-c", str(core), *command], stderr=log, start_new_session=True, **options
    )


class Child:
    """A helper of the bench that talks in lines of JSON."""

    def __init__(self, core: int, module: str, *arguments: str, log: IO[bytes]) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = start(core, command, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

    def read(self) -> Any:
        """Its next line. Raises RuntimeError where it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a helper of the bench has ended; see the log")
        return json.loads(line)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self.read()

    def stop(self) -> None:
        """Close its standard input, and wait."""
        self._process.communicate()


class Tree:
    """A process and all that it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._root = psutil.Process(process.pid)

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu_s(self) -> float:
        """Processor seconds of all of them."""
        return sum(times.user + times.system for times in (p.cpu_times() for p in self._all()))

    def resident_mib(self) -> float:
        """Memory of all of them; pages that they share count once."""
        return sum(p.memory_full_info().pss for p in self._all()) / 2**20

    def busiest_mib(self) -> float:
        """Resident memory of the one that has worked most: the data process."""
        return max(self._all(), key=lambda p: sum(p.cpu_times()[:2])).memory_info().rss / 2**20

    def pause(self) -> None:
        """Let none of them run: another is being measured on its core."""
        for process in self._all():
            process.suspend()

    def resume(self) -> None:
        """Let them run again."""
        for process in self._all():
            process.resume()

    def stop(self) -> None:
        """End all of them, by force where it takes long."""
        if self.process.poll() is not None:
            return
        self.resume()
        processes = self._all()
        self.process.terminate()
        _, alive = psutil.wait_procs(processes, STOP_TIMEOUT_S)
        for process in alive:
            process.kill()
        self.process.wait()


def answers(port: int, key: str, body: bytes, path: str = "/v1/chat/completions") -> bool:
    """Whether a whole chat request gets a 200 on this port."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return bool(response.status == 200 and response.read())
    except OSError:
        return False


def wait_until_answers(
    process: subprocess.Popen[bytes], port: int, key: str, body: bytes, for_s: float
) -> float:
    """Seconds until it answers. Raises RuntimeError where it ends before, or does not within `for_s`."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + for_s:
        if answers(port, key, body):
            return time.monotonic() - begun_s
        if process.poll() is not None:
            raise RuntimeError(f"ended with exit code {process.returncode} before it answered")
        time.sleep(0.02)
    raise RuntimeError(f"no answer within {for_s:g} s")


def can_pin() -> bool:
    """Whether there are two cores, and `taskset` to choose one."""
    paths = os.environ.get("PATH", "").split(os.pathsep)
    return (os.cpu_count() or 1) > 1 and any((Path(p) / "taskset").exists() for p in paths)
