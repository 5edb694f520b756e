"""The course: mock backends and load on one core, every proxy on the other, one running at a time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.gateway.bodies import chat_request
from bench.gateway.load import Job
from bench.gateway.pinned import LOAD_CORE, PROXY_CORE, Child, Tree, start, wait_until_answers
from bench.gateway.proxies import KEY, Proxy

BACKENDS = 4
DIRECT = "direct"
SETTLE_S = 0.3  # after a proxy may run again, for its timers that are overdue


@dataclass(frozen=True, slots=True)
class Outcome:
    """The client's measurements, and the proxy's costs."""

    load: Mapping[str, Any]
    cpu_s: float

    @property
    def requests(self) -> int:
        return int(self.load["requests"])

    @property
    def failures(self) -> int:
        """Requests with an error, or without an end."""
        return int(self.load["errors"]) + (int(self.load["pending"]) if self.load["latency_p50_s"] else 0)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A proxy that runs."""

    proxy: Proxy
    port: int
    tree: Tree
    startup_s: float


class Course:
    """Starts what is needed when it is first asked for; `close` ends all of it."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self.proxies = proxies
        self.failed: dict[str, str] = {}  # proxies that can't be measured, and why
        self._stack = ExitStack()
        self._running: dict[str, Contestant] = {}
        self._is_open = False

    def close(self) -> None:
        """End every process."""
        self._stack.close()

    def _open(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._log = self._stack.enter_context((self._folder / "log").open("wb"))
        backend = Child(LOAD_CORE, "bench.gateway.backend", str(BACKENDS), log=self._log)
        self._stack.callback(backend.stop)
        self._load = Child(LOAD_CORE, "bench.gateway.load", log=self._log)
        self._stack.callback(self._load.stop)
        self._ports: list[int] = backend.read()
        if hasattr(os, "sched_setaffinity"):  # this process itself stays off the proxies' core
            os.sched_setaffinity(0, {LOAD_CORE})

    def names(self) -> list[str]:
        """Proxies that run, started now where they were not."""
        self._open()
        for proxy in self.proxies:
            if proxy.name not in self._running and proxy.name not in self.failed:
                self._start_once(proxy)
        return list(self._running)

    def proxy(self, name: str) -> Proxy:
        """One of those that run."""
        return self._running[name].proxy

    def _start_once(self, proxy: Proxy) -> None:
        try:
            contestant = self.start(proxy)
        except (RuntimeError, OSError) as error:
            self.failed[proxy.name] = str(error)
            return
        self._running[proxy.name] = contestant
        self._stack.callback(contestant.tree.stop)
        contestant.tree.pause()

    def start(self, proxy: Proxy) -> Contestant:
        """Start one more of this proxy. Raises RuntimeError where it does not answer."""
        self._open()
        if not proxy.is_installed:
            raise RuntimeError("not installed")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        port = _free_port()
        command = proxy.command(folder, port, self._ports)
        log = (folder / "log").open("wb")
        self._stack.callback(log.close)
        environment = {**os.environ, **proxy.environment}
        tree = Tree(start(PROXY_CORE, command, log, stdout=log, cwd=folder, env=environment))
        try:
            startup_s = wait_until_answers(tree.process, port, KEY, chat_request(1024), proxy.start_s)
        except RuntimeError as error:
            tree.stop()
            raise RuntimeError(f"{error}; {_last_line(folder / 'log')}") from error
        return Contestant(proxy, port, tree, startup_s)

    def answer_with(self, **settings: float) -> None:
        """Set the backends' answers from now on."""
        self._open()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports[0]}/_set", json.dumps(settings).encode()
        )
        urllib.request.urlopen(request, timeout=10).close()

    def run(self, name: str, mode: str, **job: Any) -> Outcome:
        """Put a load on a proxy, or on a backend itself."""
        self._open()
        if name == DIRECT:
            return Outcome(self._load.ask(asdict(Job(mode, self._ports[0], KEY, **job))), 0.0)
        with self._turn(self._running[name]) as contestant:
            return self.run_on(contestant, mode, **job)

    def run_on(self, contestant: Contestant, mode: str, **job: Any) -> Outcome:
        """Put a load on a proxy that is not paused."""
        before_s = contestant.tree.cpu_s()
        load = self._load.ask(asdict(Job(mode, contestant.port, KEY, **job)))
        return Outcome(load, contestant.tree.cpu_s() - before_s)

    @contextmanager
    def _turn(self, contestant: Contestant) -> Iterator[Contestant]:
        contestant.tree.resume()
        time.sleep(SETTLE_S)
        try:
            yield contestant
        finally:
            contestant.tree.pause()

    def rounds(
        self, count: int, names: Sequence[str], run: Callable[[str], Outcome]
    ) -> dict[str, list[Outcome]]:
        """The results of each, in turns. One that breaks or fails all its requests leaves later rounds."""
        outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
        for _ in range(count):
            for name in names:
                outcomes[name].append(run(name))
        return outcomes


def _free_port() -> int:
    """A port whose number plus 10,000 is one too: some proxies want another for metrics."""
    while True:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
            port = int(tried.getsockname()[1])
        if port < 55_000:
            return port


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"it said: {lines[-1][:200]}" if lines else "it said nothing"


def program_version(proxy: Proxy) -> str:
    """The version that it prints; for those in a Python environment, the package's."""
    if ".venv-peers" in proxy.program:
        python, package = Path(proxy.program).with_name("python"), Path(proxy.program).name
        code = f"from importlib.metadata import version; print(version({package!r}))"
        command = [str(python), "-c", code]
    else:
        command = [proxy.path, "-v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = (done.stdout + done.stderr).split()
    return next((word.split("/")[-1] for word in words if word[-1:].isdigit()), "")
