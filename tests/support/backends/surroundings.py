"""What surrounds a fake backend: work of others on its machine, and its link. Both cost time."""

from __future__ import annotations

import asyncio
import math

from aiohttp import web

from support.backends.options import Options

CORES = 16
PIECE_BYTES = 1 << 16
RECEIVE_BYTES = 1 << 15  # of the socket's buffer where the link is slow: what it holds has passed the link
MIB = float(1 << 20)


class OthersWork:
    """Work of others: `busy_frac` of the processors for `busy_s`, then none for `calm_s`, over and over."""

    def __init__(self, options: Options) -> None:
        self._frac, self._busy_s = options.busy_frac, options.busy_s
        self._round_s, self._phase_s = options.busy_s + options.calm_s, options.busy_phase_s

    def level(self, at_s: float) -> float:
        """Fraction of the processors in use by others."""
        return self._frac if self._in_round_s(at_s) < self._busy_s else 0.0

    def until_change_s(self, at_s: float) -> float:
        """Seconds until the level changes."""
        if not self._frac or not 0.0 < self._busy_s < self._round_s:
            return math.inf
        passed_s = self._in_round_s(at_s)
        return (self._busy_s if passed_s < self._busy_s else self._round_s) - passed_s

    def used_s(self, at_s: float) -> float:
        """Seconds of the whole machine that others have used since time 0 of the clock."""
        if not self._frac:
            return 0.0
        rounds, passed_s = divmod(at_s + self._phase_s, self._round_s)
        return self._frac * (rounds * self._busy_s + min(passed_s, self._busy_s))

    def _in_round_s(self, at_s: float) -> float:
        return (at_s + self._phase_s) % self._round_s if self._round_s else 0.0

    def page(self, at_s: float) -> str:
        """What node_exporter says of the machine."""
        used_s = self.used_s(at_s)
        lines = [
            f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} {seconds}\n'
            for cpu in range(CORES)
            for mode, seconds in (("user", used_s), ("idle", at_s - used_s))
        ]
        return "".join(lines)


class Link:
    """A link that bodies share: each piece waits for those before it."""

    def __init__(self, mib_per_s: float) -> None:
        self._bytes_per_s = mib_per_s * MIB
        self._free_s = 0.0

    async def read(self, request: web.Request) -> bytes:
        """A body, as fast as the link lets it through."""
        if not self._bytes_per_s:
            return await request.read()
        loop, pieces = asyncio.get_running_loop(), []
        while piece := await request.content.read(PIECE_BYTES):
            pieces.append(piece)
            self._free_s = max(self._free_s, loop.time()) + len(piece) / self._bytes_per_s
            await asyncio.sleep(self._free_s - loop.time())
        return b"".join(pieces)


LINK: web.AppKey[Link] = web.AppKey("link", Link)
