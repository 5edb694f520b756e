"""A session of aiohttp's client that is opened by its first request, inside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp


class LazySession:
    """One session for all requests; `make` opens it."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        self._make = make
        self._session: aiohttp.ClientSession | None = None

    def opened(self) -> aiohttp.ClientSession:
        """The session. To be called inside the loop."""
        if self._session is None:
            self._session = self._make()
        return self._session

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # transports say goodbye in the next turn of the loop
