"""A small second kind of work: jobs on equal machines, in the order that an allocator chooses."""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from trimtab.errors import UsageError
from trimtab.experiments.compare import FigureChoice, Kind, LowerBound
from trimtab.metrics import Metric

METRICS = {
    metric.name: metric
    for metric in (
        Metric("flow_mean_s", "s", "Mean time from release to end of a job.", "lower", headline=True),
        Metric("end_s", "s", "When the last job ended.", "lower", headline=True),
        Metric("machines_busy_frac", "frac", "Share of machine time in use.", "higher"),
    )
}


class ShortestFirst:
    name = "shortest-first"

    def key(self, duration_s: np.ndarray) -> np.ndarray:
        return duration_s


class LongestFirst:
    name = "longest-first"

    def key(self, duration_s: np.ndarray) -> np.ndarray:
        return -duration_s


ALLOCATORS = {cls.name: cls for cls in (ShortestFirst, LongestFirst)}


@dataclass(frozen=True)
class Shop:
    """Settings: how many jobs and machines."""

    name: str = "shop"
    jobs: int = 60
    machines: int = 4
    sort_by: str = "flow_mean_s"
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3)

    def seed_list(self) -> tuple[int, ...]:
        return self.seeds

    def content(self) -> dict[str, object]:
        return {"jobs": self.jobs, "machines": self.machines}

    def hash(self) -> str:
        return hashlib.sha256(repr((self.jobs, self.machines)).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class ShopInputs:
    duration_s: np.ndarray
    machines: int
    offered_load: float = 1.0

    def __len__(self) -> int:
        return len(self.duration_s)


@dataclass(frozen=True, eq=False)
class ShopRecords:
    end_s: np.ndarray
    busy_frac: float


@dataclass(frozen=True)
class JobShop(Kind[Shop, ShopInputs, ShopRecords]):
    items: ClassVar[str] = "jobs"
    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    objective: ClassVar[str] = "flow_mean_s"
    sweep_up_to: ClassVar[int] = 1000
    objective_title: ClassVar[str] = "mean flow time"
    figures: ClassVar[FigureChoice] = FigureChoice(
        stats=("flow_mean_s",),
        over_load={},
        bars={"machines_busy_frac": "How busy machines were."},
        bars_title="Machines",
        trade_off=None,
    )

    def read(
        self,
        source: Shop | str | os.PathLike[str],
        *,
        load: float | None,
        policies: Sequence[str] | None,
        seeds: int | Sequence[int] | None,
    ) -> Shop:
        shop = source if isinstance(source, Shop) else Shop(Path(source).stem)
        if seeds is not None:
            shop = replace(shop, seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds))
        return shop if policies is None else replace(shop, policies=tuple(policies))

    def size(self, settings: Shop) -> int:
        return settings.jobs

    def shortened(self, settings: Shop, items: int) -> Shop:
        return replace(settings, jobs=items)

    def default_policies(self, settings: Any) -> tuple[str, ...]:
        """All of them."""
        return tuple(ALLOCATORS)

    def find(self, policy: Any) -> tuple[Any]:
        if policy not in ALLOCATORS:
            raise UsageError("no such allocator", field="policy", value=policy)
        return (ALLOCATORS[policy](),)

    def canonical(self, policy: Any) -> str:
        return str(self.find(policy)[0].name)

    def build(self, settings: Shop, seed: int, load: float | None) -> ShopInputs:
        rng = np.random.default_rng(seed)
        return ShopInputs(rng.lognormal(0.0, 1.0, settings.jobs), settings.machines)

    def run(self, inputs: ShopInputs, policy: Any, mode: str) -> ShopRecords:
        (allocator,) = self.find(policy)
        free_s = [0.0] * inputs.machines
        end_s = np.zeros(len(inputs))
        for job in np.argsort(allocator.key(inputs.duration_s), kind="stable"):
            end_s[job] = heapq.heappop(free_s) + inputs.duration_s[job]
            heapq.heappush(free_s, end_s[job])
        return ShopRecords(end_s, float(inputs.duration_s.sum() / (inputs.machines * end_s.max())))

    def measure(self, records: ShopRecords) -> dict[str, float]:
        return {
            "flow_mean_s": float(records.end_s.mean()),
            "end_s": float(records.end_s.max()),
            "machines_busy_frac": records.busy_frac,
        }

    def bound(self, inputs: ShopInputs) -> LowerBound[ShopRecords]:
        least_s = float(inputs.duration_s.mean())
        return LowerBound(
            least_s, "no waiting", ("no preemption",), lambda _, m: m["flow_mean_s"] / least_s - 1
        )

    def table(self, inputs: ShopInputs, records: ShopRecords) -> pl.DataFrame:
        return pl.DataFrame({"duration_s": inputs.duration_s, "end_s": records.end_s})

    def remarks(self, inputs: object, policy: object, records: ShopRecords) -> dict[str, Any]:
        return {"long": int((records.end_s > 1e6).sum())}

    def notes(self, settings: Shop, results: Sequence[Any], *, is_swept: bool) -> list[str]:
        long = sum(run.remarks["long"] for result in results for run in result.runs)
        return [f"{long} jobs took very long"]
