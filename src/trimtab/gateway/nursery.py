"""A small process that forks workers: it has no event loop and no thread, so its children begin clean.

The parent has both soon after its start, and must not fork itself then. The child is forked before; it holds
all that is imported and compiled, and waits to be told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

logger = logging.getLogger(__name__)

Work = Callable[[int, Any, socket.socket], int]  # number, start, its end of the channel → exit status
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
_LENGTH: Final = Struct("!I")
_PID: Final = Struct("!i")


class Nursery:
    """The parent's side. Calls wait for the child: milliseconds."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self._pid, self._end = pid, end

    @classmethod
    def open(cls, work: Work) -> Nursery:
        """Fork the child, from a process without threads. `work` is what a worker does."""
        mine, its = socket.socketpair()
        _flush()
        pid = os.fork()
        if pid == 0:
            mine.close()
            status = 1
            try:
                status = _serve(its, work)
            finally:
                os._exit(status)
        its.close()
        return cls(pid, mine)

    def fork(self, number: int, start: Any) -> tuple[int, socket.socket]:
        """A new worker: its process id, and this side of its channel. Raises OSError."""
        _send(self._end, ("fork", number, start))
        data, fds, _, _ = socket.recv_fds(self._end, _PID.size, 1)
        if len(data) < _PID.size or not fds:
            raise OSError("the process that forks workers is gone")
        return int(_PID.unpack(data)[0]), socket.socket(fileno=fds[0])

    def bury(self, pid: int) -> int:
        """Make sure that a worker is dead: returns how it ended, as `os.waitstatus_to_exitcode` does."""
        _send(self._end, ("bury", pid, None))
        data = _received(self._end, _PID.size)
        if data is None:
            raise OSError("the process that forks workers is gone")
        return int(_PID.unpack(data)[0])

    def close(self) -> None:
        """End the child; its workers go on until their channels are closed."""
        self._end.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(end: socket.socket, work: Work) -> int:
    """The child: fork and bury until the parent is gone."""
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    while (said := _take(end)) is not None:
        what, number, start = said
        if what == "fork":
            pid, its = _forked(end, work, number, start)
            socket.send_fds(end, [_PID.pack(pid)], [its.fileno()])
            its.close()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            _, status = os.waitpid(number, 0)
            end.sendall(_PID.pack(os.waitstatus_to_exitcode(status)))
    return 0


def _forked(end: socket.socket, work: Work, number: int, start: Any) -> tuple[int, socket.socket]:
    mine, its = socket.socketpair()
    _flush()
    pid = os.fork()
    if pid == 0:
        end.close()
        mine.close()
        status = 1
        try:
            status = work(number, start, its)
        except BaseException:
            traceback.print_exc()
        finally:
            _flush()
            os._exit(status)
    its.close()
    return pid, mine


def _send(end: socket.socket, said: tuple[str, int, Any]) -> None:
    data = pickle.dumps(said)
    end.sendall(_LENGTH.pack(len(data)) + data)


def _take(end: socket.socket) -> tuple[str, int, Any] | None:
    head = _received(end, _LENGTH.size)
    body = None if head is None else _received(end, _LENGTH.unpack(head)[0])
    return None if body is None else pickle.loads(body)


def _received(end: socket.socket, count: int) -> bytes | None:
    """Exactly so many bytes; None = the other side is gone."""
    data = b""
    while len(data) < count:
        try:
            piece = end.recv(count - len(data))
        except ConnectionError:
            piece = b""
        if not piece:
            return None
        data += piece
    return data


def _flush() -> None:
    """What is buffered is written once, and not by every child."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
