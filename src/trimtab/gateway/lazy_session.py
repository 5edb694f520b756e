"""An aiohttp client session that its first request opens, inside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp


class LazySession:
    """One session for all requests. `make` creates it."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        self._make = make
        self._session: aiohttp.ClientSession | None = None

    def opened(self) -> aiohttp.ClientSession:
        """The open session. Call it inside the event loop."""
        if self._session is None:
            self._session = self._make()
        return self._session

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # transports close in the next turn of the loop
