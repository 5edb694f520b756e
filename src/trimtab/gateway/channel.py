"""Messages between the parent and a worker: JSON with a length before it, and bytes beside it.

Either side asks and answers. An answer that is an error is raised where it was asked for, as `UsageError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, Final, cast

import orjson

from trimtab.errors import UsageError

logger = logging.getLogger(__name__)

Handler = Callable[[str, Any, bytes], Awaitable[tuple[Any, bytes]]]
ASK_S: Final = 10.0
_LENGTHS: Final = Struct("!II")  # of the JSON, of the bytes


class ChannelClosed(ConnectionError):  # noqa: N818 - like ConnectionError's own children
    """The other side is gone, or does not answer."""


class Channel(asyncio.Protocol):
    """One side. `handle` is given what the other side asks; `gone` is called once, when that has ended."""

    def __init__(self, handle: Handler, gone: Callable[[], None]) -> None:
        self._handle, self._gone = handle, gone
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._asked: dict[int, asyncio.Future[tuple[Any, bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serial = 0

    @classmethod
    async def open(cls, end: socket.socket, handle: Handler, gone: Callable[[], None]) -> Channel:
        """Over one end of a socket pair, which it closes."""
        channel = cls(handle, gone)
        end.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=end)
        return channel

    async def ask(
        self, what: str, said: Any = None, payload: bytes = b"", timeout_s: float = ASK_S
    ) -> tuple[Any, bytes]:
        """What the other side answers. Raises ChannelClosed, or UsageError where it says no."""
        self._serial += 1
        serial = self._serial
        future: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        self._asked[serial] = future
        try:
            self._send([serial, what, said], payload)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise ChannelClosed(f"{what}: no answer") from None
        finally:
            self._asked.pop(serial, None)

    def tell(self, what: str, said: Any = None, payload: bytes = b"") -> None:
        """Say something that needs no answer. Raises ChannelClosed."""
        self._send([0, what, said], payload)

    async def close(self) -> None:
        """End it; what is being answered is dropped."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take every message that is whole."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTHS.size:
            n_json, n_bytes = _LENGTHS.unpack_from(buffer, at)
            begin = at + _LENGTHS.size
            end = begin + n_json + n_bytes
            if len(buffer) < end:
                break
            message = orjson.loads(bytes(buffer[begin : begin + n_json]))
            payload = bytes(buffer[begin + n_json : end])
            at = end
            self._take(message, payload)
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone: nobody answers any more."""
        self._transport = None
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ChannelClosed("the other side is gone"))
        self._gone()

    # inside

    def _send(self, message: list[Any], payload: bytes = b"") -> None:
        if self._transport is None or self._transport.is_closing():
            raise ChannelClosed("the other side is gone")
        text = orjson.dumps(message)
        self._transport.write(b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload)))

    def _take(self, message: list[Any], payload: bytes) -> None:
        serial, what, said = message
        if serial < 0:
            self._answered(-serial, what, said, payload)
            return
        task = asyncio.get_running_loop().create_task(self._answer(serial, what, said, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answered(self, serial: int, what: str, said: Any, payload: bytes) -> None:
        future = self._asked.get(serial)
        if future is None or future.done():
            return
        if what == "no":
            future.set_exception(UsageError(str(said)))
        else:
            future.set_result((said, payload))

    async def _answer(self, serial: int, what: str, said: Any, payload: bytes) -> None:
        try:
            answer, back = await self._handle(what, said, payload)
            message = [-serial, "yes", answer]
        except UsageError as error:
            message, back = [-serial, "no", str(error)], b""
        except Exception:
            logger.exception("%s failed", what)
            message, back = [-serial, "no", f"{what} failed"], b""
        if serial:
            with contextlib.suppress(ChannelClosed):
                self._send(message, back)
