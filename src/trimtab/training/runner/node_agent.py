"""The program on a node that starts ranks, passes on what they report, and tells how they end.

Standard library only, and one file: it runs by its path, under any Python, whether trimtab is there or not.
It starts warm programs beside itself: the same file, under a Python of their own, with --preload. They have
imported modules, and start a rank whose command is `python FILE …` or `python -m MODULE …` as a fork of
themselves, which need not import them again. A rank of a warm program that is not there starts anew.

It reads and writes JSON objects, a line each, on the socket that is its standard input:
    {"do": "start", "rank": key, "argv": […], "env": {…}, "gpus": […], "memory_gib": …, "cwd": …, "log": …,
     "program": name}
    {"do": "signal", "rank": key, "signal": 15}  {"do": "port"}
    {"do": "warm", "program": name, "python": …, "preload": […]}
    {"event": "ready"}  {"event": "port", "port": …, "address": …}  {"event": "failed", "why": …}
    {"event": "report", "rank": key, "line": …}  {"event": "end", "rank": key, "code": …}
    {"event": "refused", "rank": key, "why": …}  {"event": "warm", "program": name}
    {"event": "cold", "program": name, "why": …}
A rank has the program's environment, and `env` over it; `python` is the Python of the program. `gpus` are
positions among the GPUs that the program itself sees (CUDA_VISIBLE_DEVICES). A rank that uses more than
`memory_gib`, with the processes that it has started, gets SIGKILL, and says so in a report (Linux).
A code below 0 is the signal that ended the rank. When the socket closes, the run is gone: ranks get SIGTERM,
and SIGKILL after --grace-s. When the program itself is killed, its ranks are too (Linux). --lock is a file
that only one such program at a time holds: the next waits until the ranks of a killed run have ended.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from typing import Any

REPORT_FD = 3
LOOK_S = 0.5  # between two looks at the memory of ranks
END_S = 5.0  # for warm programs to end once their ranks have
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # threads of several ranks would contend
_PR_SET_PDEATHSIG = 1


class Rank:
    """A process that was started."""

    def __init__(self, key: str, pid: int, reports: int, memory_gib: float) -> None:
        self.key, self.pid, self.reports, self.memory_gib = key, pid, reports, memory_gib
        self.data = b""


class Warm:
    """A warm program that was started."""

    def __init__(self, name: str, pid: int, connection: socket.socket) -> None:
        self.name, self.pid, self.connection = name, pid, connection
        self.data, self.code, self.is_ready = b"", 0, False
        self.ranks: set[str] = set()

    def send(self, line: bytes) -> None:
        """Pass a command on."""
        with contextlib.suppress(OSError):  # it has ended: that is told when its socket says so
            self.connection.sendall(line + b"\n")


class Agent:
    """Serves one connection."""

    def __init__(self, connection: socket.socket, is_warm: bool, lock: int, grace_s: float) -> None:
        self._connection, self._is_warm, self._lock = connection, is_warm, lock
        self._grace_s = grace_s
        self._input = b""
        self._ranks: dict[str, Rank] = {}
        self._warm: dict[str, Warm] = {}
        self._wakeup, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._on_input)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_child)

    def serve(self) -> None:
        """Until the run is gone."""
        self._tell(event="ready", pid=os.getpid())
        looked_s = 0.0
        while self._turn(LOOK_S if any(rank.memory_gib for rank in self._ranks.values()) else None):
            if time.monotonic() - looked_s >= LOOK_S:
                looked_s = time.monotonic()
                self._watch_memory()

    def end(self) -> None:
        """Stop all ranks, and all warm programs, which stop theirs."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._connection)
        self._signal_all(signal.SIGTERM)
        for warm in self._warm.values():
            with contextlib.suppress(OSError):  # it has ended
                warm.connection.shutdown(socket.SHUT_WR)
            if not warm.is_ready:
                _signal(warm.pid, signal.SIGKILL)  # it imports modules, and reads only after that
        until_s = time.monotonic() + self._grace_s + (END_S if self._warm else 0.0)
        while (self._ranks or self._warm) and time.monotonic() < until_s:
            self._turn(0.1)
        self._signal_all(signal.SIGKILL)
        for warm in self._warm.values():
            _signal(warm.pid, signal.SIGKILL)

    def _watch_memory(self) -> None:
        for rank in self._ranks.values():
            used_gib = _memory_gib(rank.pid) if rank.memory_gib else 0.0
            if used_gib > rank.memory_gib > 0.0:
                rank.memory_gib, allowed = 0.0, rank.memory_gib  # told once
                why = f"used {used_gib:.3g} GiB of memory; memory_gib_per_gpu allows {allowed:g}"
                self._tell(event="report", rank=rank.key, line=json.dumps({"error": why}))
                _signal(rank.pid, signal.SIGKILL)

    def _turn(self, timeout_s: float | None) -> bool:
        return all(key.data() is not False for key, _ in self._selector.select(timeout_s))

    def _on_input(self) -> bool:
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return False
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] == "start":
                warm = self._warm.get(message.get("program", ""))
                if warm is not None and warm.is_ready:
                    warm.ranks.add(message["rank"])
                    warm.send(line)
                else:
                    self._start(message)
            elif message["do"] == "port":
                self._tell(event="port", port=_free_port(), address=self._address())
            elif message["do"] == "warm":
                self._warm_up(message)
            else:
                rank = self._ranks.get(message["rank"])
                if rank is not None:
                    _signal(rank.pid, message["signal"])
                for warm in self._warm.values():
                    if message["rank"] in warm.ranks:
                        warm.send(line)
        return True

    def _address(self) -> str:
        """Of this node, as the run's machine sees it; empty: it is the run's machine."""
        is_far = self._connection.family in (socket.AF_INET, socket.AF_INET6)
        return str(self._connection.getsockname()[0]) if is_far else ""

    def _warm_up(self, message: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        python, preload = message["python"] or sys.executable, ",".join(message["preload"])
        command = [python, __file__, "--grace-s", f"{self._grace_s}", "--preload", preload]
        try:
            to_stdin = (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)
            pid = os.posix_spawn(python, command, os.environ, file_actions=[to_stdin], setsid=True)
        except OSError as error:
            ours.close()
            self._tell(event="cold", program=message["program"], why=f"{python}: {error.strerror}")
            return
        finally:
            theirs.close()
        warm = self._warm[message["program"]] = Warm(message["program"], pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_warm(warm))

    def _on_warm(self, warm: Warm) -> bool:
        """What a warm program tells is passed on; when it has ended, its ranks have."""
        try:
            data = warm.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, warm.data = (warm.data + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "ready":
                warm.is_ready = True
                self._tell(event="warm", program=warm.name)
                continue
            if event["event"] in ("end", "refused"):
                warm.ranks.discard(event["rank"])
            self._tell(**event)
        if not data:
            self._selector.unregister(warm.connection)
            warm.connection.close()
            del self._warm[warm.name]
            _signal(warm.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # else its code is known
                warm.code = os.waitstatus_to_exitcode(os.waitpid(warm.pid, 0)[1])
            for rank in warm.ranks:
                self._tell(event="end", rank=rank, code=-int(signal.SIGKILL))
            self._tell(event="cold", program=warm.name, why=f"ended with code {warm.code}")
        return True

    def _start(self, message: dict[str, Any]) -> None:
        try:
            log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            reports, theirs = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._tell(event="refused", rank=message["rank"], why=str(error))
            return
        if pid == 0:
            self._become(message, log, theirs)
        os.close(log)
        os.close(theirs)
        os.set_blocking(reports, False)
        rank = Rank(message["rank"], pid, reports, message.get("memory_gib", 0.0))
        self._ranks[rank.key] = rank
        self._selector.register(reports, selectors.EVENT_READ, lambda: self._on_report(rank))

    def _become(self, message: dict[str, Any], log: int, theirs: int) -> None:
        """In the new process: run the command. Does not return."""
        code, tried = 127, ""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            _die_with(os.getppid())
            others = [warm.connection.fileno() for warm in self._warm.values()]
            own = [REPORT_FD, self._lock, self._wake, self._connection.fileno()]
            highest = max([log, theirs, *own, *others]) + 1
            log, theirs = _moved(log, highest), _moved(theirs, highest)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (log, 1), (log, 2), (theirs, REPORT_FD)):
                os.dup2(source, target, inheritable=True)
            os.closerange(REPORT_FD + 1, max(highest + 2, 256))
            environment = _environment(message)
            tried = f"cwd {message['cwd']}"
            os.chdir(message["cwd"])
            tried = message["argv"][0]
            program, *words = message["argv"]
            program = sys.executable if program == "python" else program
            if self._is_warm:
                code = _run_python([program, *words], environment)
            else:
                os.execvpe(program, [program, *words], environment)
        except OSError as error:
            if tried:  # its descriptors are the rank's
                why = f"{tried}: {error.strerror}"
                os.write(REPORT_FD, json.dumps({"error": why}).encode() + b"\n")
                os.write(2, f"trimtab: {why}\n".encode())
        finally:
            os._exit(code)

    def _on_report(self, rank: Rank) -> bool:
        if rank.reports < 0:  # closed since it was selected
            return True
        try:
            data = os.read(rank.reports, 1 << 16)
        except BlockingIOError:
            return True
        *lines, rank.data = (rank.data + data).split(b"\n")
        for line in lines:
            self._tell(event="report", rank=rank.key, line=line.decode(errors="replace"))
        if not data:
            self._close_reports(rank)
        elif len(rank.data) > 1 << 16:  # no line ends: nothing that could be read as a report
            rank.data = b""
        return True

    def _close_reports(self, rank: Rank) -> None:
        if rank.reports >= 0:
            self._selector.unregister(rank.reports)
            os.close(rank.reports)
            rank.reports = -1

    def _on_child(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._ended(pid, os.waitstatus_to_exitcode(status))
        return True

    def _ended(self, pid: int, code: int) -> None:
        rank = next((rank for rank in self._ranks.values() if rank.pid == pid), None)
        if rank is None:
            for warm in self._warm.values():
                warm.code = code if warm.pid == pid else warm.code
            return
        del self._ranks[rank.key]
        while rank.reports >= 0 and self._has_more(rank):
            self._on_report(rank)
        self._close_reports(rank)
        _signal(pid, signal.SIGKILL)  # what it has started and left behind
        self._tell(event="end", rank=rank.key, code=code)

    def _has_more(self, rank: Rank) -> bool:
        with selectors.DefaultSelector() as one:
            one.register(rank.reports, selectors.EVENT_READ)
            return bool(one.select(0))

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks.values():
            _signal(rank.pid, number)

    def _tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")


def _environment(message: dict[str, Any]) -> dict[str, str]:
    environment = {
        **ONE_THREAD,
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        **message["env"],
        "TRIMTAB_REPORT_FD": str(REPORT_FD),
    }
    if message["gpus"]:
        seen = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen[k] if seen else str(k) for k in message["gpus"])
    return environment


def _memory_gib(pid: int) -> float:
    """Of a process and of those that it has started; what they share counts once. 0 = unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        with open(f"/proc/{pid}/task/{pid}/children") as text:
            children = [int(word) for word in text.read().split()]
    except (OSError, StopIteration):
        return 0.0
    return kib / (1 << 20) + sum(_memory_gib(child) for child in children)


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _signal(pid: int, number: int) -> None:
    """To the process; a SIGKILL to all of its session."""
    with contextlib.suppress(OSError):
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _die_with(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _moved(descriptor: int, at_least: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, at_least)
    os.close(descriptor)
    return moved


def _run_python(argv: list[str], environment: dict[str, str]) -> int:
    """Run `python FILE …` or `python -m MODULE …` in this process; returns its exit code."""
    os.environ.clear()
    os.environ.update(environment)
    for extra in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
        if extra and extra not in sys.path:
            sys.path.insert(0, extra)
    try:
        if argv[1] == "-m":
            sys.argv = argv[2:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv[1:]
            sys.path.insert(0, os.path.dirname(os.path.abspath(argv[1])))
            runpy.run_path(argv[1], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def main() -> None:
    """Serve the socket."""
    options = argparse.ArgumentParser()
    options.add_argument("--grace-s", type=float, default=30.0)
    options.add_argument("--lock", default="")
    options.add_argument("--preload", default="")
    given = options.parse_args()
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    lock = -1
    if given.lock:
        try:
            lock = os.open(given.lock, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            why = f"there is no {os.path.dirname(given.lock)}: all machines must share that folder"
            connection.sendall(json.dumps({"event": "failed", "why": why}).encode() + b"\n")
            sys.exit(1)
        fcntl.flock(lock, fcntl.LOCK_EX)
    if given.preload:
        _die_with(os.getppid())
        os.environ.update(ONE_THREAD | os.environ)  # a library reads it as it is imported: for forks too late
    for module in filter(None, given.preload.split(",")):
        importlib.import_module(module)
    with connection:
        agent = Agent(connection, bool(given.preload), lock, given.grace_s)
        agent.serve()
        agent.end()


if __name__ == "__main__":
    main()
