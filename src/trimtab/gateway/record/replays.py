"""Replays of the latest recording under the live and the shadow policy: now and then, and when asked."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trimtab.gateway.record.recorder import Recorder
from trimtab.gateway.record.shadow import ReplayFigures, replay_difference
from trimtab.traces.gateway_format import FILE_PREFIX

logger = logging.getLogger(__name__)

PERIOD_S: Final = 900.0
FILES: Final = 2  # the newest of a recording: each begins with all that its replay needs


class Replays:
    """`policies` gives the live and the shadow policy, as `--policy` takes them; None = no shadow."""

    def __init__(
        self,
        recorder: Recorder,
        policies: Callable[[], tuple[str, str] | None],
        period_s: float = PERIOD_S,
    ) -> None:
        self._recorder, self._policies, self._period_s = recorder, policies, period_s
        self._found: tuple[tuple[str, str], ReplayFigures, float] | None = None
        self._problem = ""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Replay every `period_s` from now on."""
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        """Stop, in the middle of a replay if need be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def run(self) -> dict[str, Any] | None:
        """Replay what is recorded up to now; returns `told`."""
        async with self._lock:  # one at a time
            policies = self._policies()
            if policies is None:
                return None
            try:
                self._recorder.note_estimates()
                await self._recorder.flush()
                figures = await self._replayed(*policies)
            except (RuntimeError, TimeoutError, OSError) as error:
                self._problem = str(error) or "it took too long"
                logger.warning("the recording cannot be replayed for the shadow policy: %s", self._problem)
            else:
                self._problem, self._found = "", (policies, figures, time.time())
        return self.told()

    def told(self) -> dict[str, Any] | None:
        """The last replay as the dashboard shows it; None before there is one.

        Differences are shadow − live, in seconds and as a fraction of the live policy's replayed mean.
        """
        policies = self._policies()
        if policies is None:
            return None
        if self._found is None or self._found[0] != policies:
            return {"problem": self._problem} if self._problem else None
        _, figures, at_s = self._found
        whole_s = figures.live_mean_s or float("nan")
        low_s, high_s = figures.interval or (None, None)
        return {
            "requests": figures.requests,
            "at_s": at_s,
            "error_frac": figures.live_vs_replay_error_frac,
            "hidden": figures.hidden,
            "difference_s": figures.difference_s,
            "difference_frac": _part(figures.difference_s, whole_s),
            "low_frac": _part(low_s, whole_s),
            "high_frac": _part(high_s, whole_s),
            "problem": self._problem or None,
        }

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            await self.run()

    async def _replayed(self, live: str, shadow: str) -> ReplayFigures:
        """Of the newest files, under their own names in a folder of their own."""
        recorder = self._recorder
        names = f"{FILE_PREFIX}{recorder.recording}-w*"
        files = sorted(recorder.settings.folder.glob(names), key=lambda file: file.name.rpartition("-")[2])
        with tempfile.TemporaryDirectory(prefix="trimtab-replay-") as folder:
            for file in files[-FILES:]:
                os.symlink(file.absolute(), Path(folder) / file.name)
            return await replay_difference(Path(folder), live, shadow)


def _part(seconds: float | None, whole_s: float) -> float | None:
    return None if seconds is None else seconds / whole_s
