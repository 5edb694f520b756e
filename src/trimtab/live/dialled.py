"""Links of programs that connect back to this machine from their nodes (`dial.py`).

What a host needs whose nodes can't be connected to: pods, or jobs of a batch system.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

from trimtab.live.dial import CONTROL, DATA, GRACE_S, WORD
from trimtab.live.program_host import PYTHON, Program, ProgramEvents

SILENT_S: Final = 15  # without an answer of its machine: a program is out of reach
LATE_S: Final = 2.0  # between the ends of the two connections of a program
KILL_S: Final = 10.0  # for a killed program to end
_WORD_BYTES: Final = 16
_LONGEST: Final = 128  # bytes of the first line of a connection


class DialIn:
    """Takes the connections of programs that are expected.

    Args:
        address: of this machine, where it listens; empty = all.
        port: 0 = any that is free.

    Raises OSError.
    """

    def __init__(self, address: str = "", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family)
        self.port: int = self._socket.getsockname()[1]
        self._expected: dict[bytes, DialledLink] = {}
        self._serving: asyncio.Task[asyncio.Server] | None = None

    def expect(self, name: str, events: ProgramEvents) -> DialledLink:
        """A program of this name will connect. It is expected until it has ended, or `stop`."""
        if self._serving is None:
            loop = asyncio.get_running_loop()
            serving = loop.create_server(lambda: _Connection(self._found), sock=self._socket)
            self._serving = loop.create_task(serving)
        word = secrets.token_hex(_WORD_BYTES).encode()
        link = self._expected[word] = DialledLink(name, word.decode(), events, lambda: self._forget(word))
        return link

    def _found(self, word: bytes) -> DialledLink | None:
        for expected, link in self._expected.items():
            if hmac.compare_digest(expected, word):
                return link
        return None

    def _forget(self, word: bytes) -> None:
        self._expected.pop(word, None)

    async def close(self) -> None:
        """Listen no more. All programs have ended."""
        if self._serving is not None:
            (await self._serving).close()
        self._socket.close()


class DialledLink:
    """A program that connects back.

    `connected` is done when it has connected; `over` when it has ended.
    """

    pid = 0

    def __init__(self, name: str, word: str, events: ProgramEvents, forget: Callable[[], None]) -> None:
        self.name, self._word, self._events, self._forget = name, word, events, forget
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self._ends: dict[bytes, asyncio.Transport] = {}
        self._told = b""
        self._is_lost = self._is_stopped = False

    def on_node(self, program: Program, address: str) -> Program:
        """What is to be started on the node in place of the program. `address`: HOST:PORT of the DialIn."""
        env = {**program.env, WORD: self._word, GRACE_S: f"{program.grace_s:g}"}
        argv = [PYTHON, "-m", "trimtab.live.dial", address, *program.argv]
        return Program(argv, env, program.reserves, program.grace_s)

    async def begun(self, within_s: float, why: Callable[[], str]) -> None:
        """Wait until it has connected. Raises ConnectionError, with what `why` says then, if it does not."""
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self.connected)
        except TimeoutError as error:
            raise ConnectionError(f"{self.name} has not begun in {within_s:g} s: {why()}") from error

    def write(self, data: bytes) -> None:
        """Send bytes. One that is being stopped does not get them."""
        if not self._is_stopped:
            self._ends[DATA].write(data)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if (control := self._ends.get(CONTROL)) is not None:
            control.write(b"%d\n" % number)

    async def stop(self, within_s: float = 0.0) -> None:
        """Close its socket, kill it unless it ends within this time, and return when it has ended."""
        self._is_stopped = True
        if not self.connected.done():
            self.connected.cancel()
            self.lost("before it began")
        if within_s and not self.over.done():
            with contextlib.suppress(OSError, TimeoutError):
                self._ends[DATA].write_eof()
                await asyncio.wait_for(asyncio.shield(self.over), within_s)
        self.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.over), KILL_S)
        self.lost("as it was stopped")

    def lost(self, how: str) -> None:
        """It has ended, as the host knows from elsewhere."""
        if self.over.done():
            return
        self.over.set_result(how)
        self._forget()
        for end in self._ends.values():
            end.close()
        if not self.connected.done():
            self.connected.set_exception(ConnectionError(f"{self.name} ended {how}"))
            self.connected.exception()  # seen
        self._events.ended(how)

    # What its connections tell.

    def made(self, role: bytes, transport: asyncio.Transport) -> None:
        """One of its two connections is there."""
        self._ends[role] = transport
        if len(self._ends) == 2 and not self.connected.done():
            self.connected.set_result(None)

    def received(self, role: bytes, data: bytes) -> None:
        """Bytes of one of them."""
        if role == DATA:
            self._events.received(data)
        else:
            self._told += data

    def closed(self, role: bytes) -> None:
        """One of them has ended: so has the program, once it is known how."""
        if self._is_lost or self.over.done():
            self.lost(self._told.decode(errors="replace").strip() or "out of reach")
        else:
            self._is_lost = True
            asyncio.get_running_loop().call_later(LATE_S, self.closed, role)


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to another. Raises OSError."""
    family, kind, *_, to = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as apart:
        apart.connect(to)  # sends nothing
        return str(apart.getsockname()[0])


class _Connection(asyncio.Protocol):
    """One connection; its first line says whose it is."""

    def __init__(self, find: Callable[[bytes], DialledLink | None]) -> None:
        self._find, self._first = find, b""
        self._link: DialledLink | None = None
        self._role = b""

    def connection_made(self, transport: Any) -> None:
        """Find out when its machine is gone."""
        self._transport = transport
        made = transport.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S)

    def data_received(self, data: bytes) -> None:
        """The first line, and what follows."""
        if self._link is not None:
            self._link.received(self._role, data)
            return
        self._first += data
        line, ended, rest = self._first.partition(b"\n")
        if not ended and len(line) <= _LONGEST:
            return
        word, _, role = line.partition(b" ")
        link = self._find(word) if role in (DATA, CONTROL) else None
        if link is None:
            self._transport.abort()
            return
        self._link, self._role = link, role
        link.made(role, self._transport)
        if rest:
            link.received(role, rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        if self._link is not None:
            self._link.closed(self._role)
