"""Watches the head of the cluster: Ray ends its processes, this one too, a minute after it went."""

from __future__ import annotations

import asyncio
from typing import Final

from trimtab.clusters.ray.pulse import BEAT_S, Pulse

GONE_BEATS: Final = 45  # without an answer: it does not come back in time. Ray ends processes after 60 s


class HeadWatch:
    """Connects to the head once a beat. An unknown address, as through Ray's client, is never gone."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self._address = address
        self.is_refused = False  # its machine answers, and nothing listens there
        self.pulse = Pulse(self._connect, self._answered, self._failed)

    @property
    def is_gone(self) -> bool:
        """Whether it has not answered for long."""
        return self.pulse.missed >= GONE_BEATS

    async def _connect(self) -> None:
        if self._address is None:
            return
        async with asyncio.timeout(BEAT_S):
            _, writer = await asyncio.open_connection(*self._address)
        writer.close()

    def _answered(self, _: None) -> None:
        self.is_refused = False

    def _failed(self, error: Exception) -> None:
        self.is_refused = isinstance(error, ConnectionRefusedError)
