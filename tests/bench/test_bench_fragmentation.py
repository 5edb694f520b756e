"""The page says what was measured; the allocator against one written out in plain Python."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from bench.ages import without_age
from bench.allocator import Kinds, Machines, Rule, place
from bench.fragmentation import (
    AT_PERCENT,
    DATA,
    PAGE,
    RESULTS,
    SEEDS,
    allocated_percent,
    read_machines,
    read_pods,
    resampled,
)
from bench.fragmentation_page import PUBLISHED, end, page

from bench import allocator
from trimtab.compiled.kernel import interpreted

MACHINES = Machines(
    np.array([[8.0, 64.0], [16.0, 32.0], [4.0, 64.0], [16.0, 64.0]]),
    np.array([2, 4, 1, 2]),
    np.array([0, 1, 0, 1]),
)
KINDS = Kinds(
    np.array([[1, 4, 250], [2, 8, 500], [4, 8, 1000], [4, 16, 1000], [2, 8, 0], [1, 2, 640]], float),
    np.array([1, 1, 1, 2, 0, 1]),
    np.array([[0, 0], [0, np.inf], [0, 0], [0, 0], [0, 0], [0, 0]], float),
    np.array([3, 4, 3, 1, 3, 2]) / 16,
)
STEP_MILLI = Fraction(4000, 200)


class Plain:
    """Nodes as lists; every score anew, exactly."""

    def __init__(self) -> None:
        self.free = MACHINES.capacity.tolist()
        self.gpus = [[1000] * n for n in MACHINES.n_devices]

    def where(self, j: int, m: int, gpus: list[int], free: list[float]) -> list[list[int]]:
        """Sets of devices of node j that a pod of kind m may take."""
        cpu, ram, ask = KINDS.demand[m]
        able = [g for g, left in enumerate(gpus) if left >= ask]
        many = KINDS.many[m]
        if (
            np.isinf(KINDS.fixed_s[m, MACHINES.type_idx[j]])
            or free[0] < cpu
            or free[1] < ram
            or len(able) < many
        ):
            return []
        return [[g] for g in able] if many == 1 else [able[:many]]

    def with_pod(self, j: int, m: int, devices: list[int]) -> tuple[list[int], list[float]]:
        cpu, ram, ask = KINDS.demand[m]
        gpus = [left - int(ask) * (g in devices) for g, left in enumerate(self.gpus[j])]
        return gpus, [self.free[j][0] - cpu, self.free[j][1] - ram]

    def fragments(self, j: int, gpus: list[int], free: list[float]) -> Fraction:
        total = Fraction(0)
        for m, weight in enumerate((3, 4, 3, 1, 3, 2)):
            runs = KINDS.many[m] and self.where(j, m, gpus, free)
            lost = sum(left for left in gpus if not runs or left < KINDS.demand[m, 2])
            total += Fraction(weight, 16) * lost
        return total

    def choices(self, rule: Rule, m: int) -> list[tuple[Any, int, list[int]]]:
        """Score, node and devices, of all that are possible."""
        found = []
        for j, gpus in enumerate(self.gpus):
            for devices in self.where(j, m, gpus, self.free[j]):
                after, rest = self.with_pod(j, m, devices)
                left = Fraction(rest[0]) / 16 + Fraction(sum(after), 4000)
                tightest = [gpus[g] for g in devices]
                if rule == Rule.FIRST_FIT:
                    score: Any = (j,)
                elif rule == Rule.BEST_FIT:
                    score = (left, j, tightest)
                elif rule == Rule.DOT_PRODUCT:
                    gpu = Fraction(sum(gpus) - sum(after), 4000) * Fraction(sum(gpus), 4000)
                    cpu = Fraction(self.free[j][0] - rest[0]) / 16 * Fraction(self.free[j][0]) / 16
                    score = (-(-50 * (cpu + gpu) // 1), j, tightest)
                else:
                    growth = self.fragments(j, after, rest) - self.fragments(j, gpus, self.free[j])
                    score = (-(-growth // STEP_MILLI), left, j, growth)
                found.append((score, j, devices))
        return found

    def place(self, rule: Rule, pods: np.ndarray) -> list[tuple[int, list[int]]]:
        placed = []
        for m in pods:
            choices = sorted(self.choices(rule, m))
            _, j, devices = choices[0] if choices else (None, -1, [])
            placed.append((j, devices))
            if choices:
                self.gpus[j], self.free[j] = self.with_pod(j, m, devices)
        return placed


@pytest.fixture(autouse=True)
def _plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cases need no compiler."""
    monkeypatch.setattr(allocator, "_place_all", interpreted(allocator._place_all))


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule != Rule.RANDOM])
@pytest.mark.parametrize("seed", range(6))
def test_every_rule_places_as_written_out(rule: Rule, seed: int) -> None:
    pods = np.random.default_rng(seed).choice(6, 30, p=KINDS.popularity)
    got = place(rule, pods, np.zeros((30, 2)), MACHINES, KINDS)
    want = Plain().place(rule, pods)
    assert got[:, 0].tolist() == [j for j, _ in want]
    shares = [i for i, m in enumerate(pods) if want[i][0] >= 0 and 0 < KINDS.demand[m, 2] < 1000]
    assert [[device] for device in got[shares, 1]] == [want[i][1] for i in shares]
    assert -1 in got[:, 0]  # the last pods find no room


def test_random_places_wherever_it_fits() -> None:
    """Each of the nodes where it fits as often, and any device."""
    pick = np.random.default_rng(1)
    pods = np.array([1])
    seen = [tuple(place(Rule.RANDOM, pods, pick.random((1, 2)), MACHINES, KINDS)[0]) for _ in range(600)]
    counts = {where: seen.count(where) for where in sorted(set(seen))}
    assert list(counts) == [(0, 0), (0, 1), (2, 0)]  # type 1 may not serve the kind
    assert counts[2, 0] == pytest.approx(300, abs=60)
    assert counts[0, 0] == pytest.approx(150, abs=50)


def test_resampling_ends_at_the_target() -> None:
    pods, milli = np.repeat(np.arange(3), [5, 10, 4]), np.array([250.0, 1000.0, 0.0])
    for target in (4_000.0, 20_000.0):
        many = resampled(pods, milli, target, np.random.default_rng(2))
        assert target - 1000.0 < milli[many].sum() <= target


def test_shares_are_of_what_has_come() -> None:
    pods, milli = np.zeros(14, np.int64), np.array([1000.0])
    placed = np.zeros((14, 2), np.int64)
    placed[9:] = -1
    assert allocated_percent(pods, placed, milli, 10_000.0) == [min(at // 10 * 10, 90) for at in AT_PERCENT]


def test_ends_are_near_the_published_ones() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))["allocated_percent"]["default"]
    assert all(len(saved[name]) == SEEDS for name in PUBLISHED)
    for name, percent in PUBLISHED.items():
        assert end(saved[name]).mean == pytest.approx(percent, abs=0.3)


@pytest.mark.data
def test_the_recorded_cluster_and_its_pods() -> None:
    """1,213 nodes with accelerators, 6,212 of them, 8,152 pods, as the trace is described."""
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there")
    machines, names = read_machines(DATA)
    assert (len(machines.capacity), machines.n_devices.sum()) == (1213, 6212)
    kinds, pods = read_pods(DATA / "openb_pod_list_gpuspec10.csv.gz", names)
    assert len(pods) == 8152
    assert np.bincount(pods) / len(pods) == pytest.approx(kinds.popularity)
    assert np.isinf(kinds.fixed_s).any(axis=1)[pods].sum() == 732


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))
