"""Simulations as tasks of Ray: the same numbers, interrupted and gone on with, errors of their own kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trimtab as tt
from trimtab.errors import PolicyError, UsageError
from trimtab.experiments.compare import Comparison, RunsDone
from trimtab.report.results_folder import write_results

pytestmark = [pytest.mark.xdist_group("ray")]
needs_ray = pytest.mark.usefixtures("shared_ray")
POLICIES = ["random", "least-connections"]


def compared(out: Path, **options: Any) -> Comparison:
    return tt.compare("tiny", POLICIES, [0, 1, 2], sweep=(), mode="interpreted", out=out, **options)


def numbers(comparison: Comparison) -> dict[str, Any]:
    told = comparison.to_dict()
    del told["elapsed_s"]
    return told


def records(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.parquet")}


@needs_ray
def test_on_ray_all_numbers_and_records_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    here = compared(tmp_path / "here", jobs=1)
    there = compared(tmp_path / "there", on="ray")
    for done, out in ((here, "here"), (there, "there")):
        write_results(done, tmp_path / out, with_report=False)
    assert repr(numbers(there)) == repr(numbers(here))  # nan too
    kept = records(tmp_path / "here")
    assert len(kept) == 6
    assert kept.keys() == {
        f"requests/{policy}/seed-{seed}.parquet" for policy in POLICIES for seed in range(3)
    }
    assert records(tmp_path / "there") == kept


@needs_ray
def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    def interrupt(told: RunsDone) -> None:
        if told.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "there", on="ray", jobs=1, progress=interrupt)
    seen: list[RunsDone] = []
    again = compared(tmp_path / "there", on="ray", progress=seen.append)
    assert (seen[0].done, seen[0].total) == (2, 6)
    assert (seen[-1].done, seen[-1].kept) == (6, 2)
    assert repr(numbers(again)) == repr(numbers(compared(tmp_path / "here", jobs=1)))


class Fails(tt.Policy):
    @staticmethod
    def dispatch(*_: object) -> int:
        raise ValueError("no idea")


@needs_ray
def test_an_error_of_a_policy_is_the_one_that_it_is_elsewhere() -> None:
    with pytest.raises(PolicyError, match="no idea"):
        tt.compare("tiny", [Fails()], [0, 1], sweep=(), mode="interpreted", on="ray")


def test_an_unknown_place_is_refused_before_anything_is_read() -> None:
    with pytest.raises(
        UsageError, match=r"on: no such place \(got 'mars'\); expected processes, ray or ray://"
    ):
        tt.compare("no-such-scenario", on="mars")
