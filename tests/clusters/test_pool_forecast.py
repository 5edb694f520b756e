"""Pools that grow before a burst that comes every season: by hand, and simulated beside the queue alone."""

from __future__ import annotations

import pytest

from trimtab.clusters.pool_forecast import PoolForecast
from trimtab.clusters.pool_sizes import PoolSize, PoolSizes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageCode, StageDemand, StageNode

TICK_S, SERVICE_S, START_S, BURST, SEASON_S = 0.1, 1.0, 2.0, 8, 20.0


def test_a_burst_that_comes_every_season_is_expected_as_long_before_as_a_start_takes() -> None:
    """8 in step 30 of 60, of 0.5 s each, with steps of 1 s: 4 workers, from 2 steps before."""
    forecast, arrived = PoolForecast(["draw", "none"], 60.0, 2.0), 0
    expected = []
    for second in range(4 * 60):
        now_s = 1000.0 + second
        told = forecast.workers(now_s, {"draw": StageDemand(0, arrived, 0.5), "none": StageDemand(0, 7)})
        expected.append(told.get("draw", -1.0))
        assert told.get("none", 0.0) == 0.0
        arrived += 8 if second % 60 == 30 else 0
    assert expected[:60] == [-1.0] * 60  # nothing is known
    by_step = dict(enumerate(expected[180:]))
    assert [by_step[k] for k in (28, 29, 30)] == pytest.approx([4.0] * 3, abs=0.2)
    assert [by_step[k] for k in range(60) if k not in (28, 29, 30)] == pytest.approx([0.0] * 57, abs=0.1)


def test_workers_that_are_expected_start_and_stay_without_a_queue() -> None:
    size = PoolSize[str](1, 4, 60.0)
    idle = {"waiting": 0, "idle": 1, "start_s": 2.0}
    assert size.missing(0.0, live=1, starting=0, expected=3, **idle) == 2
    assert size.missing(0.1, live=1, starting=2, expected=3, **idle) == 0
    assert size.missing(0.2, live=3, starting=0, expected=9, **idle) == 1  # the most is 4
    assert size.needless(0.0, ["a", "b", "c"], 3) == []
    assert size.needless(60.0, ["a", "b", "c"], 3, expected=2) == ["c"]
    assert size.needless(60.0, ["a", "b"], 2) == ["b"]


class Simulated:
    """One pool of 1 to 8 workers: a burst every season, each instance takes `SERVICE_S`."""

    def __init__(self, season_s: float) -> None:
        self._workers: list[list[int]] = [[0]]
        self._starting, self._ready_s = [0], list[float]()
        self._free_s, self._now_s, self._number = {0: 0.0}, 0.0, 0
        self.worker_s = 0.0
        self._sizes = PoolSizes[int](
            [StageNode("pool", BURST, slots_min=1)], [StageCode("draw", b"")], 3.0, self._workers,
            self._starting, is_idle=self._is_idle, start=self._start, end=self._end, season_s=season_s,
        )  # fmt: skip
        self._sizes.start_s = START_S
        if season_s:
            self._sizes.learn()

    def _is_idle(self, worker: int) -> bool:
        return self._free_s[worker] <= self._now_s

    def _start(self, node: int) -> None:
        self._starting[node] += 1
        self._ready_s.append(self._now_s + START_S)

    def _end(self, node: int, worker: int) -> None:
        self._workers[node].remove(worker)

    def waits_s(self, seasons: int) -> list[float]:
        """Of all instances."""
        queue: list[float] = []
        waits_s: list[float] = []
        ticks, arrived = round(SEASON_S / TICK_S), 0
        for tick in range(seasons * ticks):
            self._now_s = tick * TICK_S
            while self._ready_s and self._ready_s[0] <= self._now_s:
                self._ready_s.pop(0)
                self._starting[0] -= 1
                self._number += 1
                self._workers[0].append(self._number)
                self._free_s[self._number] = self._now_s
            if tick % ticks == ticks // 2:
                queue += [self._now_s] * BURST
                arrived += BURST
            for worker in self._workers[0]:
                if queue and self._is_idle(worker):
                    waits_s.append(self._now_s - queue.pop(0))
                    self._free_s[worker] = self._now_s + SERVICE_S
            self.worker_s += TICK_S * (len(self._workers[0]) + self._starting[0])
            self._sizes.look(self._now_s, {"draw": StageDemand(len(queue), arrived, SERVICE_S)})
        return waits_s


def test_a_burst_waits_less_than_when_the_queue_alone_decides() -> None:
    """By the queue: a start begins 2 s after the burst and takes 2 s; one worker serves 4 until then."""
    seasons = 10
    by_queue, by_forecast = Simulated(0.0), Simulated(SEASON_S)
    alone, ahead = by_queue.waits_s(seasons), by_forecast.waits_s(seasons)
    assert len(alone) == len(ahead) == seasons * BURST
    assert ahead[:BURST] == alone[:BURST]  # nothing is known yet
    assert alone[-BURST:] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0], abs=0.3)
    assert max(ahead[-5 * BURST :]) == 0.0
    assert by_forecast.worker_s < 2.0 * by_queue.worker_s


@pytest.mark.parametrize("fails", ["__init__", "workers"])
def test_a_forecast_that_fails_is_told_once_and_the_queue_decides(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("no such season")

    monkeypatch.setattr(PoolForecast, fails, broken)
    assert Simulated(SEASON_S).waits_s(2) == Simulated(0.0).waits_s(2)
    (said,) = [record for record in caplog.records if record.name == "trimtab.clusters.pool_sizes"]
    assert "the queue alone decides" in said.message
    assert "no such season" in caplog.text


def test_a_season_is_a_time() -> None:
    with pytest.raises(UsageError, match=r"season_s: not a time .*-1"):
        Simulated(-1.0)
