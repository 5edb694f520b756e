"""What a seed of a scenario runs: arrays by hand, the meaning of load, streams that do not disturb others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.domain.options import Cancel, OnFailure, OnRefusal
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import Scenario, builtin_names, load_scenario
from trimtab.experiments.scenario.build import RunInputs, build

POISSON = {"process": "poisson", "rate_per_s": 2.0}
CHOICE = {"distribution": "choice"}


def scenario(**changes: Any) -> Scenario:
    """Two types, two classes; `workload` and `generate` changes are merged in."""
    generate = {
        "requests": 2000,
        "arrival": POISSON,
        "mix": {"a": {"share": 3}, "b": {"share": 1}},
        "size": {"distribution": "lognormal", "mean": 10, "cv": 1},
        **changes.pop("generate", {}),
    }
    content = {
        "cluster": {
            "types": {
                "fast": {"memory_gib": 24, "speed": 2, "slots": 2},
                "slow": {"memory_gib": 8, "accelerators": 4, "usd_per_hour": 3},
            },
            "nodes": [{"type": "fast", "count": 2}, {"type": "slow", "count": 3, "slots": 4, "queue_max": 5}],
        },
        "models": {"m": {"memory_gib": 6, "load_s": 3, "count": 3}, "big": {"memory_gib": 20}},
        "adapters": {"l": {"memory_gib": 1, "load_s": {"fast": 1, "slow": 2}, "count": 2}},
        "classes": {
            "a": {"model": "m", "adapter": "l", "fixed_s": 1, "unit_s": 0.1, "slo_s": 9},
            "b": {"fixed_s": 0.5, "unit_s": {"slow": 0.4, "fast": None}},
        },
        "workload": {"generate": generate, **changes.pop("workload", {})},
        **changes,
    }
    return Scenario.model_validate(content)


def test_the_cluster_by_hand() -> None:
    cluster = build(scenario(), 0).cluster
    assert cluster.node_names == ("fast-1", "fast-2", "slow-1", "slow-2", "slow-3")
    assert cluster.slots.tolist() == [2, 2, 4, 4, 4]
    assert cluster.queue_max.tolist()[2:] == [5, 5, 5]
    assert cluster.fixed_s.tolist() == [[0.5, 1.0], [np.inf, 0.5]]
    assert cluster.unit_s.tolist() == [[0.05, 0.1], [0.0, 0.4]]
    assert cluster.item_names == ("m-1", "m-2", "m-3", "big", "l-1", "l-2")
    assert cluster.item_gib.tolist() == [6, 6, 6, 20, 1, 1]
    assert cluster.item_is_adapter.tolist() == [0, 0, 0, 0, 1, 1]
    assert cluster.load_s.tolist() == [[3, 3], [3, 3], [3, 3], [0, 0], [1, 2], [1, 2]]
    assert cluster.accelerators.tolist() == [1, 4]
    assert build(scenario(), 0).slo_s.tolist() == [9, np.inf]


def test_weights_are_slots_times_relative_speed() -> None:
    weight = build(scenario(), 0).cluster.weight
    # fast serves only class a, at the best speed; slow serves a at half of it and b at the best.
    assert weight == pytest.approx([2, 2, 4 * 0.75, 4 * 0.75, 4 * 0.75])


def test_a_model_that_fits_no_memory_makes_requests_that_fit_no_node() -> None:
    changed = scenario(models={"m": {"memory_gib": 25}}, adapters={"l": {"memory_gib": 1}})
    built = build(changed, 0)
    is_a = built.requests.work["class_idx"] == 0
    assert np.isinf(built.cluster.fixed_s[0]).all()
    assert np.isinf(built.requests.work["estimate_s"][is_a]).all()
    assert built.n_fits_no_node == is_a.sum()
    # What is served is all that counts for the capacity: class b on 12 slots.
    truth = built.requests.truth[~is_a]
    served_per_s = 12 / np.mean(0.5 + 0.4 * truth["units"])
    assert built.capacity_per_s * np.mean(~is_a) == pytest.approx(served_per_s)


def test_a_model_must_fit_together_with_an_adapter() -> None:
    changed = scenario(models={"m": {"memory_gib": 7.5}}, adapters={"l": {"memory_gib": 1}})
    assert np.isinf(build(changed, 0).cluster.fixed_s[0]).tolist() == [False, True]


def offered_on_one_type(built: RunInputs, slots: int) -> float:
    """Work that arrives per second over slots, with nothing but definitions."""
    c, truth, work = built.cluster, built.requests.truth, built.requests.work
    k = work["class_idx"]
    work_s = (c.fixed_s[k, 0] + c.unit_s[k, 0] * truth["units"]) * truth["factor"]
    span_s = work["arrival_s"][-1] - work["arrival_s"][0]
    return float(work_s.mean() * (len(work) - 1) / span_s / slots)


@pytest.mark.parametrize("load", [0.3, 0.8, 1.7])
def test_load_is_offered_work_over_capacity(load: float) -> None:
    one_type = {"types": {"x": {"memory_gib": 80, "slots": 3}}, "nodes": [{"type": "x", "count": 4}]}
    classes = {"a": {"fixed_s": 1, "unit_s": 0.1}, "b": {"unit_s": 0.5}}
    built = build(scenario(cluster=one_type, models={}, adapters={}, classes=classes), 3, load)
    assert built.offered_load == pytest.approx(load)
    assert offered_on_one_type(built, 12) == pytest.approx(load)


def test_a_load_stretches_time_about_the_first_arrival_and_keeps_deadlines_apart() -> None:
    changed = scenario(workload={"deadline": {"factor": 4, "seconds": 2, "share_frac": 0.5}})
    as_it_comes, scaled = build(changed, 1), build(changed, 1, 0.5)
    before, after = as_it_comes.requests.work, scaled.requests.work
    assert after["arrival_s"][0] == before["arrival_s"][0]
    ratio = np.diff(after["arrival_s"]) / np.diff(before["arrival_s"])
    assert ratio == pytest.approx(np.full(len(ratio), as_it_comes.offered_load / 0.5))
    due = np.isfinite(before["deadline_s"])
    assert 0.4 < due.mean() < 0.6
    assert (np.isfinite(after["deadline_s"]) == due).all()
    patience_s = (after["deadline_s"] - after["arrival_s"])[due]
    assert patience_s == pytest.approx((before["deadline_s"] - before["arrival_s"])[due])
    best_s = scaled.cluster.best_estimate_s(after["class_idx"], scaled.requests.truth["units"])
    assert patience_s == pytest.approx(4 * best_s[due] + 2)


def test_one_request_takes_no_load() -> None:
    changed = scenario(generate={"requests": 1})
    assert build(changed, 0).offered_load == np.inf
    with pytest.raises(ScenarioError, match=r"workload\.load.*all at once"):
        build(changed, 0, 0.5)


def test_requests_are_in_order_and_in_range() -> None:
    built = build(scenario(generate={"mix": {"a": {"share": 1, "adapter_frac": 0.3}, "b": {"share": 1}}}), 0)
    work = built.requests.work
    assert work["serial"].tolist() == list(range(2000))
    assert (np.diff(work["arrival_s"]) >= 0).all()
    assert work["arrival_s"][0] >= 0
    for array in (work, built.requests.truth):
        assert array.flags.c_contiguous
        assert array.flags.writeable
    is_a = work["class_idx"] == 0
    assert set(work["model_idx"][is_a]) == {0, 1, 2}
    assert set(work["adapter_idx"][is_a]) == {-1, 4, 5}
    assert set(work["model_idx"][~is_a]) == {-1}
    assert np.isinf(work["deadline_s"]).all()
    assert work["estimate_s"] == pytest.approx(
        built.cluster.best_estimate_s(work["class_idx"], work["units"])
    )
    assert (work["units"] == built.requests.truth["units"]).all()


def test_keys_follow_model_and_adapter_or_the_session() -> None:
    work = build(scenario(generate={"mix": {"a": {"share": 1, "adapter_frac": 0.3}}}), 0).requests.work
    pairs = {(r["model_idx"], r["adapter_idx"]) for r in work}
    keyed = {(r["model_idx"], r["adapter_idx"], r["key"]) for r in work}
    assert len(pairs) == len(keyed) == len(set(work["key"]))
    assert (work["key"] >= 0).all()
    unbound = build(scenario(generate={"mix": {"b": {"share": 1}}}), 0).requests.work
    assert len(set(unbound["key"])) == 2000
    sessions = build(scenario(workload={"sessions": {"count": 7, "zipf": 0}}), 0).requests.work
    assert len(set(sessions["key"])) == 7


def drawn(changed: Scenario, seed: int = 0) -> dict[str, Any]:
    """Everything that was drawn, by name, before any load."""
    requests = build(changed, seed).requests
    columns = {name: requests.work[name].copy() for name in requests.work.dtype.names or ()}
    noise = requests.work["units"] / requests.truth["units"]
    return columns | {"truth": requests.truth["units"], "factor": requests.truth["factor"], "noise": noise}


FULL: dict[str, Any] = {
    "estimate_cv": 0.2,
    "service_cv": 0.1,
    "tenants": {"count": 5},
    "priorities": {0: 1, 1: 1},
    "deadline": {"seconds": {"distribution": "exponential", "mean": 5}},
    "sessions": {"count": 100},
    "payload_gib": {"distribution": "exponential", "mean": 1},
}

ARRIVAL = {"arrival_s", "run_arrival_s"}


@pytest.mark.parametrize(
    ("change", "may_differ"),
    [
        ({"generate": {"arrival": {**POISSON, "rate_per_s": 1}}}, ARRIVAL | {"deadline_s"}),
        ({"generate": {"size": 3}}, {"units", "cost", "estimate_s", "rank_s", "truth"}),
        ({"workload": {**FULL, "tenants": {"count": 9}}}, {"tenant_idx"}),
        ({"workload": {**FULL, "priorities": {0: 3, 4: 1}}}, {"priority"}),
        ({"workload": {**FULL, "service_cv": 0.5}}, {"factor"}),
        ({"workload": {**FULL, "estimate_cv": 0.5}}, {"units", "cost", "estimate_s", "rank_s", "noise"}),
        ({"workload": {**FULL, "sessions": None}}, {"key"}),
        ({"workload": {**FULL, "payload_gib": 1}}, {"payload_gib"}),
        ({"workload": {**FULL, "deadline": None}}, {"deadline_s"}),
    ],
)  # fmt: skip
def test_changing_one_part_leaves_the_others_as_they_were(
    change: dict[str, Any], may_differ: set[str]
) -> None:
    before = drawn(scenario(workload=FULL))
    after = drawn(scenario(**{"workload": FULL, **change}))
    differ = {name for name in before if not np.allclose(before[name], after[name], rtol=1e-12, atol=0)}
    assert differ
    assert differ <= may_differ
    np.testing.assert_array_equal(after["run_arrival_s"], after["arrival_s"])  # a request is its own run
    np.testing.assert_array_equal(after["rank_s"], after["estimate_s"])


def test_the_same_seed_gives_the_same_and_another_one_not() -> None:
    first, twin, other = drawn(scenario(workload=FULL)), drawn(scenario(workload=FULL)), None
    other = drawn(scenario(workload=FULL), seed=1)
    assert all((first[name] == twin[name]).all() for name in first)
    for name in ("arrival_s", "truth", "factor", "noise", "tenant_idx", "class_idx", "key"):
        assert (first[name] != other[name]).any(), name


def test_columns_are_not_correlated() -> None:
    columns = drawn(scenario(workload=FULL, generate={"requests": 20_000, "mix": {"a": {"share": 1}}}))
    gaps = np.diff(columns["arrival_s"], prepend=0.0)
    table = [
        gaps,
        columns["truth"],
        columns["factor"],
        columns["noise"],
        columns["tenant_idx"],
        columns["payload_gib"],
    ]
    correlation = np.corrcoef(np.log(np.array(table) + 1e-9)) - np.eye(len(table))
    assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


def test_noise_has_mean_one_and_the_variation_asked_for() -> None:
    columns = drawn(scenario(workload=FULL, generate={"requests": 50_000}))
    for name, cv in (("noise", 0.2), ("factor", 0.1)):
        assert columns[name].mean() == pytest.approx(1, abs=5 * cv / np.sqrt(50_000))
        assert columns[name].std() == pytest.approx(cv, rel=0.03)


def test_shares_of_classes_tenants_and_priorities() -> None:
    shares = {"tenants": {"x": 3, "y": 1}, "priorities": {0: 0.9, 5: 0.1}}
    built = build(scenario(workload=shares, generate={"requests": 40_000}), 0)
    work = built.requests.work
    assert np.mean(work["class_idx"] == 1) == pytest.approx(0.25, abs=0.011)
    assert built.requests.tenant_names == ("x", "y")
    assert np.mean(work["tenant_idx"] == 1) == pytest.approx(0.25, abs=0.011)
    assert set(work["priority"]) == {0, 5}
    assert np.mean(work["priority"] == 5) == pytest.approx(0.1, abs=0.008)


def test_tenants_are_charged_by_their_weight() -> None:
    spec = {"tenants": {"x": 1, "y": 1}, "tenant_weights": {"y": 4.0}}
    requests = build(scenario(workload=spec), 0).requests
    assert requests.tenant_weight is not None
    assert requests.tenant_weight.tolist() == [1.0, 4.0]
    work = requests.work
    np.testing.assert_allclose(work["cost"], work["units"] / np.where(work["tenant_idx"] == 1, 4.0, 1.0))
    assert len(set(work["tenant_idx"])) == 2


def test_a_weight_of_a_tenant_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"workload\.tenant_weights.*'z'.*one of x, y") as error:
        build(scenario(workload={"tenants": {"x": 1, "y": 1}, "tenant_weights": {"z": 2}}), 0)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("size", "mean"),
    [
        (7, 7.0),
        ({**CHOICE, "values": {1: 3, 5: 1}}, 2.0),
        ({"distribution": "quantiles", "values": {0: 1, 0.5: 3, 1: 11}}, 0.5 * 2 + 0.5 * 7),
        ({"product": {"p": 3, "q": {**CHOICE, "values": {4: 1, 16: 1}}}, "powers": {"q": 0.5}}, 9.0),
        ({"sum": {"p": 3, "q": {"distribution": "exponential", "mean": 2}}, "weights": {"q": 0.5}}, 4.0),
    ],
)  # fmt: skip
def test_mean_of_each_form_of_size(size: Any, mean: float) -> None:
    units = build(scenario(generate={"size": size, "requests": 40_000}), 0).requests.truth["units"]
    assert units.mean() == pytest.approx(mean, rel=0.02)


def test_serving_switches_and_faults() -> None:
    serving = {
        "held_max": 4,
        "on_refusal": "reject",
        "lookahead": 3,
        "cancel": "waiting",
        "on_failure": "resume",
        "max_retries": 7,
        "dispatchers": 2,
        "telemetry": {"period_s": 5, "delay_s": 1},
        "plan_latency_s": 0.5,
        "horizon_s": 100,
    }
    faults = [
        {"type": "slow", "at_s": 10, "duration_s": 5, "factor": 0.5},
        {"node": "fast-2", "mtbf_s": 100, "mttr_s": 7},
        {"share_frac": 0.4, "at_s": 1, "duration_s": 2},
    ]
    options = build(scenario(serving=serving, faults=faults), 0).options
    assert (options.on_refusal, options.cancel, options.on_failure) == (
        OnRefusal.REJECT,
        Cancel.WAITING,
        OnFailure.RESUME,
    )
    assert (options.held_max, options.lookahead, options.max_retries, options.dispatchers) == (4, 3, 7, 2)
    assert (options.telemetry_period_s, options.telemetry_delay_s, options.plan_latency_s) == (5, 1, 0.5)
    assert options.horizon_s == 100
    rows = options.faults
    assert rows is not None
    assert rows["node_idx"][:4].tolist() == [2, 3, 4, 1]
    assert rows["start_s"][:4].tolist() == [10, 10, 10, 0]
    assert rows["end_s"][:3].tolist() == [15, 15, 15]
    assert rows["factor"][:4].tolist() == [0.5, 0.5, 0.5, 0]
    assert rows["mtbf_s"][:4].tolist() == [np.inf] * 3 + [100]
    assert rows["mttr_s"][3] == 7
    assert len(rows) == 6  # two of five nodes
    assert len(set(rows["node_idx"][4:])) == 2


def test_zones_round_trips_and_origins() -> None:
    cluster = {
        "types": {"x": {"memory_gib": 80}},
        "nodes": [{"type": "x", "zone": "us", "name": "edge", "nic_gib_per_s": 2}, {"type": "x"}],
        "zones": {"eu": {"ingress_gib_per_s": 10}, "us": {}},
        "rtt_s": {"eu": {"us": 0.09}},
    }
    classes = {"a": {"unit_s": 1}, "b": {"unit_s": 1}}
    changed = scenario(cluster=cluster, classes=classes, workload={"origin": {"us": 3, "eu": 1}}, adapters={})
    built = build(changed.model_copy(update={"models": {}}), 0)
    assert built.cluster.zone_names == ("eu", "us")
    assert built.cluster.zone_idx.tolist() == [1, 0]
    assert built.cluster.node_names == ("edge", "x-1")
    assert built.cluster.rtt_s.tolist() == [[0, 0.09], [0.09, 0]]
    assert built.cluster.zone_gib_per_s.tolist() == [10, np.inf]
    assert built.cluster.nic_gib_per_s.tolist() == [2, np.inf]
    assert np.mean(built.requests.work["zone_idx"] == 1) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("name", builtin_names())
def test_built_ins_have_the_load_they_state(name: str) -> None:
    chosen = load_scenario(name)
    built = build(chosen, 0)
    assert built.offered_load == pytest.approx(chosen.workload.load)
    assert len(built.requests) == chosen.n_requests()
    assert built.n_fits_no_node == 0
