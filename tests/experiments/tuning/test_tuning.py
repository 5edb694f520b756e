"""Tuning finds a known optimum, says where there is none to find, and goes on as if uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trimtab as tt
from support.splits import POLICIES, SCENARIO, best_share, mean_s
from trimtab.errors import UsageError
from trimtab.experiments.compare import RunsDone
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.tuning import Goal, Tuning, tune_policy


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(POLICIES)
    return path


def scenario(requests: int = 2000) -> Scenario:
    return tt.scenario(SCENARIO.replace("REQUESTS", str(requests)))


def tuned(policy: str, objective: str = "mean s.t. p99<=+0%", requests: int = 2000, **options: Any) -> Tuning:
    given = {"candidates": 8, "jobs": 1} | options
    return tune_policy(scenario(requests), policy, Goal.parsed(objective), **given)


def test_the_best_split_of_two_servers_is_found(own: Path) -> None:
    found = tuned(f"{own}:Split", requests=6000, candidates=16)
    best = best_share()
    assert found.verdict == "gain"
    assert found.is_confirmed
    assert found.best.values["fast"] == pytest.approx(best, abs=0.06)
    change = found.test.changes["completion_mean_s"]
    assert change.low_frac < mean_s(best) / mean_s(0.6) - 1.0 < change.high_frac
    assert found.policy == f"{own}:Split(fast={found.best.values['fast']})"


def test_a_parameter_without_effect_has_nothing_to_gain(own: Path) -> None:
    found = tuned(f"{own}:Idle")
    assert (found.verdict, found.policy, found.is_confirmed) == ("nothing to gain", f"{own}:Idle", False)
    assert found.in_words().startswith("nothing to gain: ")
    assert {(c.frac, c.low_frac, c.high_frac) for c in found.test.changes.values()} == {(0.0, 0.0, 0.0)}


def test_the_requests_of_the_test_are_never_used_to_choose(own: Path) -> None:
    """Later requests change the test alone."""
    longer = SCENARIO.replace("REQUESTS", "2000").replace(
        "workload:", "faults: [{node: fast-1, at_s: 950, duration_s: 60}]\nworkload:"
    )
    found = tuned(f"{own}:Split")
    other = tune_policy(
        tt.scenario(longer), f"{own}:Split", Goal.parsed("mean s.t. p99<=+0%"), candidates=8, jobs=1
    )
    assert other.best == found.best
    assert other.test.changes != found.test.changes


def test_an_interrupted_tuning_goes_on_and_finds_the_same(own: Path, tmp_path: Path) -> None:
    whole = tuned(f"{own}:Split").to_dict()

    def interrupt(runs: RunsDone) -> None:
        if runs.done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(f"{own}:Split", out=tmp_path / "out", progress=interrupt)
    seen: list[RunsDone] = []
    again = tuned(f"{own}:Split", out=tmp_path / "out", progress=seen.append)
    assert again.to_dict() == whole
    assert seen[-1].kept >= 29
    assert seen[-1].done <= seen[-1].total
    assert again.folders[0].path.is_dir()
    for folder in again.folders:
        folder.remove()
    assert not again.folders[0].path.exists()


def test_without_resume_all_is_run_anew(own: Path, tmp_path: Path) -> None:
    tuned(f"{own}:Idle", out=tmp_path)
    seen: list[RunsDone] = []
    tuned(f"{own}:Idle", out=tmp_path, resume=False, progress=seen.append)
    assert seen[-1].kept == 0


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"requests": 1999}, ("requests", "1999", "at least 2,000")),
        ({"policy": "own.py:Fixed"}, ("policy", "own.py:Fixed", "Tunable(0.1, 10.0, 'log')")),
        ({"policy": "round-robin"}, ("policy", "round-robin", "a number that says its range")),
        ({"objective": "means"}, ("--objective", "'means'", "METRIC [s.t. METRIC<=+X%")),
        ({"objective": "gini_nodes"}, ("--objective", "'gini_nodes'", "metrics of single requests")),
        ({"objective": "mean s.t. p99<2s"}, ("--objective", "'p99<2s'", "mean s.t. p99<=+0%")),
        ({"objective": "mean s.t. p99>=+1%"}, ("--objective", "'p99>=+1%'", "completion_p99_s<=")),
        ({"candidates": 3}, ("--candidates", "3", "at least 6")),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    own: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(own.parent)
    with pytest.raises(UsageError) as refused:
        tuned(**({"policy": "own.py:Split"} | change))
    assert refused.value.exit_code == 2
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_runs_of_chains_are_refused() -> None:
    with pytest.raises(UsageError, match="is of runs of chains"):
        tune_policy(tt.scenario("workflows"), "late-binding", Goal.parsed("mean"))
