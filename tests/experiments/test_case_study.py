"""The case study: workloads, effects by hand, verdicts that can turn out either way, a small whole run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from trimtab.experiments.case import FACTORS, CaseStudy, Scale, effects, judged, run_case
from trimtab.experiments.case.case_workload import CAUSES, SWITCHES, with_causes, workload
from trimtab.experiments.case.study import METRICS, STRATEGIES
from trimtab.experiments.scenario import parse_scenario
from trimtab.experiments.scenario.build import build
from trimtab.report.case_page import case_page, front
from trimtab.report.case_tables import case_tables

SMALL = Scale(requests=60, seeds=2, loads=(0.8,), switch_seeds=2)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> CaseStudy:
    return run_case(SMALL, tmp_path_factory.mktemp("case"), jobs=1)


def test_effects_by_hand() -> None:
    """y = 10 + 4a + 2b + 6ab: a has 4 + 3 on average, b 2 + 3; each changes the other by half of 6."""
    rows = {f"{a}{b}": {"y": [10.0 + 4 * a + 2 * b + 6 * a * b] * 2} for a, b in product((0, 1), repeat=2)}
    found = {e.factors: e.change.mean for e in effects(rows, ("a", "b"), "y", is_relative=False)}
    assert found == {("a",): pytest.approx(7.0), ("b",): pytest.approx(5.0), ("a", "b"): pytest.approx(3.0)}


def test_relative_effects_multiply() -> None:
    rows = {f"{a}{b}": {"y": [8.0 * 0.5**a * 3.0**b]} for a, b in product((0, 1), repeat=2)}
    found = {e.factors: e.change.mean for e in effects(rows, ("a", "b"), "y", is_relative=True)}
    assert found == {("a",): pytest.approx(-0.5), ("b",): pytest.approx(2.0), ("a", "b"): pytest.approx(0.0)}


def test_whole_images_and_their_parts_take_the_same_seconds() -> None:
    """But for what it takes to start a part by itself, 0.3 s each of two."""
    whole, split = workload((), 0.8, 10), workload({"split"}, 0.8, 10)
    for kind in ("t4", "l40s"):
        parts = [split["classes"][name]["fixed_s"][kind] for name in ("segment", "features", "sdxl")]
        assert sum(parts) == pytest.approx(whole["classes"]["sdxl"]["fixed_s"][kind] + 0.6)


@pytest.mark.parametrize("on", [(), ("split",), tuple(SWITCHES)])
def test_switches_change_no_arrival(on: tuple[str, ...]) -> None:
    first = build(parse_scenario(workload((), 0.5, 40)), 3)
    assert build(parse_scenario(workload(on, 0.5, 40)), 3).requests.work["arrival_s"][:40].tolist() == (
        first.requests.work["arrival_s"][:40].tolist()
    )


def test_without_causes_all_requests_and_nodes_are_alike() -> None:
    built = build(parse_scenario(with_causes((), 0.7, 50)), 0)
    assert len(set(built.requests.work["units"].tolist())) == 1
    assert len(set(built.cluster.type_idx.tolist())) == 1
    for cause in CAUSES:
        build(parse_scenario(with_causes((cause,), 0.7, 50)), 0)


def test_a_study_has_every_strategy_cause_and_setting(study: CaseStudy) -> None:
    assert list(study.strategies["0.8"]) == [strategy.name for strategy in STRATEGIES]
    assert set(study.causes) == {"none", *CAUSES, "all"}
    assert len(study.switches) == 2 ** len(FACTORS)
    assert all(set(row) == set(METRICS) for row in study.switches.values())
    assert all(len(row["completion_mean_s"]) == 2 for row in study.switches.values())
    means = [
        sum(row["completion_mean_s"]) for name, row in study.strategies["0.8"].items() if "split" not in name
    ]
    whole = [mean for mean, strategy in zip(means, STRATEGIES, strict=False) if "split" not in strategy.on]
    assert min(whole) >= sum(study.bound_s["0.8"])


def test_a_verdict_follows_the_figures(study: CaseStudy) -> None:
    """The same claim with rows that say so at the one load, say the opposite, or differ by chance."""
    rows = study.strategies["0.8"]

    def verdict(random_s: list[float], round_robin_s: list[float]) -> str:
        changed = {
            **rows,
            "random": rows["random"] | {"completion_mean_s": random_s},
            "round robin": rows["round robin"] | {"completion_mean_s": round_robin_s},
        }
        told = judged(replace(study, strategies={"0.8": changed}))
        (one,) = (of for of in told if of.claim.text.startswith("Random avoids"))
        return one.verdict

    assert verdict([10.0, 11.0], [20.0, 21.1]) == "holds"
    assert verdict([20.0, 21.1], [10.0, 11.0]) == "does not hold"
    assert verdict([10.0, 21.0], [20.0, 11.0]).startswith("does not hold: no difference")


def test_claims_without_weights_or_a_model_say_so(study: CaseStudy) -> None:
    untold = {of.claim.text: of.measured[0] for of in judged(study) if of.verdict == "not measured"}
    assert any("case-train" in text for text in untold.values())
    assert any("not part of the model" in text for text in untold.values())


def test_the_front_is_of_strategies_that_none_beats(study: CaseStudy) -> None:
    points, best = front(study)
    for name, (x, y) in points.items():
        is_beaten = any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
        assert is_beaten != (name in best)


def test_the_page_has_every_table(study: CaseStudy) -> None:
    html = case_page(study)
    for table in case_tables(study):
        assert table.title in html
        assert all(len(row) == len(table.head) for row in table.rows)


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    told: list[str] = []

    def stop(done: int, total: int, what: str) -> None:
        told.append(what)
        if done == 2:
            raise KeyboardInterrupt

    scale = replace(SMALL, requests=20, switch_seeds=1)
    with pytest.raises(KeyboardInterrupt):
        run_case(scale, tmp_path, jobs=1, say=stop)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["strategies-0.8-parameter-cache", "strategies-0.8-parameter-cache+split"]
