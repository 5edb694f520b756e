"""Answers in words say what the figures say: a policy's rank, what is certain, and what limits the fleet."""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest

from support.synthetic import comparison
from trimtab.experiments.scenario.loader import resolve_scenario
from trimtab.experiments.serving.advice import advice_figures
from trimtab.report.advice_texts import advice, verdict
from trimtab.report.number_formats import rounded
from trimtab.report.paired import Verdict, against_best

CLUSTER = """
types:
  a: {memory_gib: 80, usd_per_hour: 2.0}
nodes: [{type: a, count: 2}]
classes: {chat: {unit_s: 1.0}}
"""


def test_the_best_is_named_and_only_certain_differences_are_called_certain() -> None:
    found = comparison(seeds=(0, 1, 2, 3))
    ranked = found.ranked()
    said = " ".join(verdict(found))
    assert said.startswith(f"{ranked[0].policy} has the best completion mean of {len(ranked)}: ")
    against = against_best(ranked, found.kind.metrics["completion_mean_s"])
    same = [r.policy for r, a in zip(ranked, against, strict=True) if a.verdict is Verdict.SAME]
    behind = [r.policy for r, a in zip(ranked, against, strict=True) if a.verdict is Verdict.BEHIND]
    certain = said.partition("Worse for certain")[2]
    assert behind[0] in certain
    assert not any(name in certain for name in same)
    one_run = " ".join(verdict(comparison(seeds=(0,))))
    assert "On this one run, without an interval" in one_run
    assert "for certain" not in one_run


def test_numbers_in_sentences_are_written_in_full() -> None:
    numbers = [3635.2, 160.4, 0.0, 0.25, 12.0, -0.3333]
    assert [rounded(x, 2) for x in numbers] == ["3,600", "160", "0", "0.25", "12", "-0.33"]
    assert rounded(73.1, 2, signed=True) == "+73"
    assert rounded(1.5e-5) == "1.5e-05"


def test_without_a_bound_nothing_is_said_of_one() -> None:
    assert "lower bound" in " ".join(verdict(comparison()))
    assert "lower bound" not in " ".join(verdict(comparison(bounded=False)))


ARRIVALS = sorted([10.0 * i for i in range(60)] + [300.0 + 0.01 * i for i in range(60)])


def first_come_first_served(nodes: int) -> float:
    """Mean completion of the arrivals, 1 s each, on equal nodes."""
    free_s = [0.0] * nodes
    total_s = 0.0
    for arrival_s in ARRIVALS:
        end_s = max(arrival_s, heapq.heappop(free_s)) + 1.0
        heapq.heappush(free_s, end_s)
        total_s += end_s - arrival_s
    return total_s / len(ARRIVALS)


@pytest.fixture
def said(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Advice on two nodes that are idle, then get 60 requests of 1 s at once, then are idle again."""
    rows = "".join(f"{t},1\n" for t in ARRIVALS)
    (tmp_path / "t.csv").write_text("arrival_s,size\n" + rows)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    scenario = resolve_scenario(trace=tmp_path / "t.csv", cluster=tmp_path / "c.yaml")
    return advice(advice_figures(scenario, ["late-binding", "round-robin"], jobs=1))


def test_limits_and_one_node_more_are_those_of_the_run(said) -> None:  # type: ignore[no-untyped-def]
    limits = " ".join(said["What limits the fleet"])
    assert "slots limit it" in limits
    # 590 s in twelve parts of 49.17 s: the seventh, from 295 s on, holds the burst
    assert "busiest from 295 to 344 s" in limits
    more = " ".join(said["One node more"])
    change_s = first_come_first_served(3) - first_come_first_served(2)
    assert f"One more a (2 USD per hour): mean completion changes by {change_s:+.2g} s" in more
    assert "on this one run" in more
    assert said["Where the model does not hold"][-1].startswith("Model: a slot per request")
    assert any("without randomness" in each for each in said["Where the model does not hold"])
