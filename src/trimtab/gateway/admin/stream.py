"""The dashboard's live stream: the status every second, computed once for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import orjson
from aiohttp import web

from trimtab.gateway.admin.control import Control

MOST_WATCHERS: Final = 32
_BEHIND: Final = 3  # events that a slow viewer may lag behind; further events are dropped


def encoded(status: Any) -> bytes:
    """JSON. Numbers that are not finite become null."""
    return orjson.dumps(status, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


class StatusStream:
    """Requests the gateway's status each `period_s`, only while there are viewers."""

    def __init__(self, control: Control, period_s: float = 1.0) -> None:
        self._control = control
        self._period_s = period_s
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of viewers is reached."""
        return len(self._watchers) >= MOST_WATCHERS

    async def serve(self, request: web.Request, response: web.StreamResponse) -> None:
        """Write events until the client leaves or the server stops. The first holds the whole history."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self._watchers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await response.prepare(request)
            await response.write(_event(await self._control.status()))
            while (event := await queue.get()) is not None:
                await response.write(event)
        except ConnectionResetError:
            pass  # the client left
        finally:
            self._watchers.discard(queue)

    async def close(self) -> None:
        """End all streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for queue in self._watchers:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    async def _run(self) -> None:
        while self._watchers:
            await asyncio.sleep(self._period_s)
            status = await self._control.status()
            event = _event({**status, "history": status["history"][-1:]})
            for queue in self._watchers:
                if not queue.full():
                    queue.put_nowait(event)


def _event(status: Any) -> bytes:
    return b"event: status\ndata: " + encoded(status) + b"\n\n"
