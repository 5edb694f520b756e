"""Splitting and batching in scenario files: what a host is given, and what bounds and records make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.errors import ScenarioError
from trimtab.experiments.bounds import bound_of
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.serving.run import simulate
from trimtab.policies.data_aware.split_merge import SplitMerge

SPLIT = {"part_units": 2.0, "parts_max": 4, "join_s": 0.25}


def scenario(**classes: dict[str, Any]) -> Scenario:
    """Constant sizes of 5 units on 8 equal nodes, all classes equally frequent."""
    served = {name: {"fixed_s": 0.5, "unit_s": 1.0, **more} for name, more in classes.items()}
    generate = {
        "requests": 60,
        "arrival": {"process": "poisson", "rate_per_s": 0.2},
        "mix": {name: {"share": 1} for name in classes},
        "size": {"distribution": "constant", "value": 5.0},
    }
    return Scenario.model_validate(
        {
            "cluster": {"types": {"gpu": {"memory_gib": 8}}, "nodes": [{"type": "gpu", "count": 8}]},
            "classes": served,
            "workload": {"generate": generate},
        }
    )


def test_off_unless_a_class_names_it() -> None:
    built = build(scenario(plain={}), 0)
    assert built.options.join_s is None
    assert built.options.batch_marginal_frac is None
    assert (built.requests.work["parts_max"] == 1).all()


def test_parts_by_size_and_costs_by_class() -> None:
    built = build(scenario(plain={}, apart={"split": SPLIT}, together={"batch": {"marginal_frac": 0.4}}), 0)
    assert built.options.join_s is not None
    assert built.options.batch_marginal_frac is not None
    assert built.options.join_s.tolist() == [0.0, 0.25, 0.0]
    assert built.options.batch_marginal_frac.tolist() == [-1.0, -1.0, 0.4]
    work = built.requests.work
    assert (work["parts_max"] == np.where(work["class_idx"] == 1, 2, 1)).all()  # 5 units, 2 each


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"split": {"part_units": 0}}, "part_units"),
        ({"split": {"part_units": 1, "parts_max": 1}}, "parts_max"),
        ({"split": {"part_units": 1, "join_s": -1}}, "join_s"),
        ({"split": {}}, "part_units"),
        ({"batch": {"marginal_frac": 1.5}}, "marginal_frac"),
        ({"batch": {}}, "marginal_frac"),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, Any], field: str, tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    content = scenario(a={}).model_dump(mode="json", exclude_defaults=True)
    content["classes"]["a"] |= more
    path.write_text(__import__("json").dumps(content))
    with pytest.raises(ScenarioError, match=field):
        load_scenario(path)


def test_the_bound_is_void_with_batches_and_weaker_with_parts() -> None:
    whole, parts, batched = (
        build(scenario(a=more), 0) for more in ({}, {"split": SPLIT}, {"batch": {"marginal_frac": 0.4}})
    )
    assert bound_of(batched.cluster, batched.requests, batched.options) is None
    bounds = [bound_of(b.cluster, b.requests, b.options) for b in (whole, parts)]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[1].mean_s < bounds[0].mean_s == pytest.approx(5.5, rel=0.05)


def test_records_have_one_row_per_request_and_the_work_of_all_parts() -> None:
    """5 units in 2 parts at an almost idle cluster: 2.5 units each, .5 s fixed each, .25 s to join."""
    run = simulate(scenario(a={"split": SPLIT}), SplitMerge(), mode="interpreted")
    rows = run.records.requests
    assert len(rows.arrival_s) == len(run.requests) == 60
    assert rows.finished.all()
    assert rows.work_s == pytest.approx(6.0)
    assert rows.best_work_s == pytest.approx(5.5)
    assert np.median(rows.completion_s) == pytest.approx(0.5 + 2.5 + 0.25)
    assert run.records.nodes.busy_slot_s.sum() == pytest.approx(60 * 6.0)
    assert run.distance_frac == run.distance_frac


def test_slots_that_still_run_a_batch_at_the_horizon_count_once() -> None:
    """Everything arrives within seconds at one node: at the horizon it has been busy all the time."""
    content = scenario(a={"batch": {"marginal_frac": 0.5}}).model_dump(mode="json", exclude_defaults=True)
    content["cluster"]["nodes"][0]["count"] = 1
    content["workload"]["generate"]["arrival"]["rate_per_s"] = 100.0
    content["serving"] = {"horizon_s": 50.0}
    run = simulate(Scenario.model_validate(content), SplitMerge(plan_period_s=1.0), mode="interpreted")
    assert run.records.nodes.busy_slot_s[0] <= 50.0
    assert run.records.nodes.busy_slot_s[0] == pytest.approx(50.0, rel=0.02)
    assert np.isnan(run.distance_frac)
