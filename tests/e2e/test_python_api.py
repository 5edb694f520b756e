"""`import trimtab as tt`: what it offers, and that own policies need nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml

import trimtab as tt
from trimtab.errors import ScenarioError, UsageError
from trimtab.metrics import METRICS

OWN = (Path(__file__).parents[2] / "examples" / "own_policy.py").read_text()


def test_exported_names():
    assert tt.__all__ == [
        "HOLD",
        "ClusterState",
        "Comparison",
        "Need",
        "Node",
        "Policy",
        "Request",
        "Run",
        "Scenario",
        "TrimtabError",
        "allocate",
        "can_take",
        "compare",
        "estimate_s",
        "fit",
        "helper",
        "kernel",
        "memory",
        "missing_load_s",
        "read_trace",
        "reject",
        "scenario",
        "simulate",
        "size",
    ]
    assert set(tt.__all__) <= set(dir(tt))
    assert all(getattr(tt, name) is not None for name in tt.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        tt.nonsense  # noqa: B018


def test_the_package_is_typed():
    assert (Path(tt.__file__).parent / "py.typed").exists()


@pytest.fixture(scope="module")
def run() -> tt.Run:
    return tt.simulate("tiny", policy="least-expected-wait+edf", seed=3)


def test_metrics_are_floats_by_name(run):
    assert list(run.metrics) == list(METRICS)
    assert all(isinstance(value, float) for value in run.metrics.values())


def test_requests_are_a_typed_table(run):
    kinds = {
        "request_id": pl.Int64,
        "arrival_s": pl.Float64,
        "start_s": pl.Float64,
        "finish_s": pl.Float64,
        "node_idx": pl.Int64,
        "status": pl.Enum,
        "reason": pl.Enum,
        "class": pl.Enum,
        "tenant": pl.Enum,
    }
    assert run.requests.height == 300
    assert all(run.requests.schema[name] == kind for name, kind in kinds.items())
    assert run.requests["request_id"].to_list() == list(range(300))


def test_metrics_follow_from_the_tables(run):
    done = run.requests.filter(pl.col("status") == "finished")
    completion_s = done["finish_s"] - done["arrival_s"]
    assert run.metrics["completion_mean_s"] == pytest.approx(completion_s.mean())
    assert run.metrics["completion_var_s2"] == pytest.approx(completion_s.var(ddof=0))
    assert run.metrics["queueing_mean_s"] == pytest.approx((done["start_s"] - done["arrival_s"]).mean())
    assert run.metrics["utilisation_var"] == pytest.approx(run.nodes["busy_frac"].var(ddof=0))
    assert run.nodes["finished"].sum() == done.height
    served = done.group_by("node_idx").len().sort("node_idx")
    assert run.nodes["finished"].gather(served["node_idx"]).to_list() == served["len"].to_list()


def test_mean_completion_is_above_the_bound(run):
    assert run.bound is not None
    assert run.bound.mean_s <= run.metrics["completion_mean_s"]
    assert run.distance_frac == pytest.approx(run.metrics["completion_mean_s"] / run.bound.mean_s - 1)


def test_runs_are_reproducible_and_modes_agree(run):
    twin = tt.simulate("tiny", policy="least-expected-wait+edf", seed=3, mode="interpreted")
    assert twin.requests.equals(run.requests)
    assert twin.metrics == pytest.approx(run.metrics, abs=0, rel=0, nan_ok=True)


def test_load_is_offered_work_over_capacity():
    built = tt.simulate("tiny", "random", load=0.4).inputs
    rate_per_s = (len(built.requests) - 1) / np.ptp(built.requests.work["arrival_s"])
    assert rate_per_s / built.capacity_per_s == pytest.approx(0.4)


def test_a_scenario_is_found_by_name_or_file(tmp_path):
    tiny = tt.scenario("tiny")
    path = tmp_path / "again.yaml"
    path.write_text(tiny.model_dump_json(exclude_defaults=True))
    assert tt.scenario(path).hash() == tiny.hash()
    with pytest.raises(ScenarioError, match="tiny"):
        tt.scenario("tinny")


def test_trace_and_cluster_make_a_run(tmp_path):
    trace, cluster = tmp_path / "t.csv", tmp_path / "c.yaml"
    trace.write_text("arrival_s,size\n0,2\n1,2\n2,2\n")
    cluster.write_text("types: {a: {memory_gib: 1}}\nnodes: [{type: a}]\n")
    run = tt.simulate(policy="round-robin", trace=trace, cluster=cluster)
    # one node, two seconds each: done at 2, 4 and 6
    assert run.requests["finish_s"].to_list() == [2.0, 4.0, 6.0]
    assert run.metrics["completion_mean_s"] == 3.0


def test_a_scenario_moves_to_another_cluster(tmp_path):
    cluster = tmp_path / "c.yaml"
    cluster.write_text("types: {a: {memory_gib: 24}}\nnodes: [{type: a, count: 9}]\n")
    moved = tt.simulate(tt.scenario("tiny"), "round-robin", cluster=cluster)
    assert moved.nodes["node"].to_list() == [f"a-{k}" for k in range(1, 10)]


def test_values_texts_and_frames_are_as_good_as_files(tmp_path):
    rows = {"arrival_s": [float(i) for i in range(40)], "size": [1.0 + i % 3 for i in range(40)]}
    nodes = {"types": {"a": {"memory_gib": 1}}, "nodes": [{"type": "a", "count": 2}]}
    frame = pl.DataFrame(rows)
    frame.write_csv(tmp_path / "t.csv")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(nodes))
    from_files = tt.simulate(policy="random", trace=tmp_path / "t.csv", cluster=tmp_path / "c.yaml")
    for trace in (frame, tt.read_trace(frame), pd.DataFrame(rows)):
        run = tt.simulate(policy="random", trace=trace, cluster=nodes)
        assert run.metrics["completion_mean_s"] == from_files.metrics["completion_mean_s"]
    of_text = tt.simulate(policy="random", trace=frame, cluster=yaml.safe_dump(nodes))
    assert of_text.metrics["completion_mean_s"] == from_files.metrics["completion_mean_s"]
    whole = {"cluster": nodes, "workload": {"trace": {"file": str(tmp_path / "t.csv")}}}
    assert tt.scenario(whole).cluster == tt.scenario(yaml.safe_dump(whole)).cluster
    compared = tt.compare(trace=frame, cluster=nodes, policies=["random"], seeds=2, sweep=(), jobs=1)
    assert compared.results[0].runs[0].metrics["completion_mean_s"] == pytest.approx(
        from_files.metrics["completion_mean_s"]
    )
    with pytest.raises(UsageError, match="no format of training jobs"):
        tt.compare("elastic-training", trace=frame)
    with pytest.raises(UsageError, match="trace: does not apply to a shared cluster"):
        tt.compare("shared-cluster", trace=frame)


def test_tables_in_every_shape_and_a_report(tmp_path):
    compared = tt.compare("tiny", policies=["random", "jiq"], seeds=2, sweep=(), jobs=1)
    wide, long = compared.table("wide"), compared.table("long")
    assert wide["policy"].to_list() == ["random", "jiq"]
    assert wide["completion_mean_s"][0] == compared.results[0].metrics["completion_mean_s"].mean
    assert wide["completion_mean_s_ci95"][0] == compared.results[0].metrics["completion_mean_s"].ci95
    mean = long.filter((pl.col("policy") == "jiq") & (pl.col("metric") == "completion_mean_s"))
    assert mean["seed"].to_list() == [0, 1]
    assert mean["value"].mean() == pytest.approx(wide["completion_mean_s"][1])
    assert compared.to_pandas()["policy"].tolist() == ["random", "jiq"]
    with pytest.raises(UsageError, match="summary, wide or long"):
        compared.table("tall")
    assert compared.report(tmp_path / "r.html").stat().st_size < 2e6
    assert compared.plot("completion_p99_s").save(tmp_path / "f.svg").exists()
    assert len(repr(compared.plot())) < 200


def test_a_plain_policy_may_go_through_the_nodes_of_the_view():
    class ByColumns(tt.Policy):
        def dispatch(self, view, plan, work, memory, draws, ranking):
            able = [j for j in range(len(view.nodes.in_flight)) if tt.can_take(view, work, j)]
            if not able:
                return 0
            ranking[0] = min(able, key=lambda j: view.nodes.in_flight[j])
            return 1

    class ByRecords(tt.Policy):
        def dispatch(self, view, plan, work, memory, draws, ranking):
            able = [n for n in view.nodes if tt.can_take(view, work, n.row)]
            if not able:
                return 0
            ranking[0] = min(able, key=lambda n: n.in_flight).row
            return 1

    by_columns, by_records = (tt.simulate("tiny", policy).metrics for policy in (ByColumns, ByRecords))
    assert by_records["completion_mean_s"] == by_columns["completion_mean_s"]


def test_the_long_table_has_every_seed_of_every_load():
    compared = tt.compare("tiny", policies=["random"], seeds=2, sweep=(0.5, 0.7), jobs=1)
    long = compared.table("long").filter(pl.col("metric") == "completion_mean_s")
    loads = long["load"].unique().sort().to_list()
    assert loads[0] == 0.5
    assert len(loads) == 2  # 0.7 is the scenario's own
    assert long.group_by("load").len()["len"].to_list() == [2, 2]
    for load, mean in long.group_by("load").agg(pl.col("value").mean()).rows():
        (point,) = [p for p in compared.sweep if p.load == pytest.approx(load, rel=1e-6)]
        assert mean == pytest.approx(point.metrics["completion_mean_s"].mean)


def test_size_and_fit_take_what_compare_takes():
    rng = np.random.default_rng(5)
    frame = pl.DataFrame({"arrival_s": rng.exponential(1.0, 120).cumsum(), "size": rng.uniform(1, 20, 120)})
    types = {
        "types": {
            "fast": {"memory_gib": 80, "usd_per_hour": 3.1, "speed": 2.0},
            "slow": {"memory_gib": 24, "usd_per_hour": 1.0, "speed": 1.0},
        },
        "classes": {"chat": {"fixed_s": 0.3, "unit_s": 0.1}},
    }
    sized = tt.size(frame, types, "completion_p99<4s", max_nodes=4)
    assert "nodes" not in types
    assert sized.best is not None
    assert sized.table()["fleet"].to_list() == [fleet.in_words() for fleet in sized.frontier()]
    again = tt.simulate(policy=sized.best.policy, trace=frame, cluster=sized.content())
    assert again.metrics["completion_p99_s"] == sized.best.metrics["completion_p99_s"] < 4
    assert len(repr(sized)) < 200
    assert tt.size(frame, yaml.safe_dump(types), "completion_p99<4s", max_nodes=4).best == sized.best

    recorded = frame.with_columns(recorded_s=0.3 + 0.1 * pl.col("size"))
    one = {**types, "nodes": [{"type": "slow", "count": 1}]}
    (row,) = tt.fit(recorded, one).table().rows(named=True)
    assert (row["fixed_s"], row["unit_s"]) == pytest.approx((0.3, 0.1))


def test_compare_gives_a_table_and_ranks():
    comparison = tt.compare("tiny", policies=["random", "least-expected-wait"], seeds=2, sweep=(), jobs=1)
    assert [r.policy for r in comparison.ranked("completion_mean_s")] == ["least-expected-wait", "random"]
    table = comparison.table()
    assert table.columns == ["policy", "metric", "mean", "ci95"]
    assert table.height == 2 * len(METRICS)
    seeds = [tt.simulate("tiny", "random", seed=seed).metrics["queueing_mean_s"] for seed in (0, 1)]
    assert comparison.results[0].metrics["queueing_mean_s"].mean == pytest.approx(math.fsum(seeds) / 2)


def test_results_are_short_in_a_shell(run):
    comparison = tt.compare("tiny", policies="random", seeds=2, sweep=(), jobs=1)
    lines = repr(comparison).splitlines()
    assert lines[0].startswith("Comparison on tiny: 300 requests, load ")
    assert [line.split()[0] for line in lines[1:]] == ["random"]
    assert "± " in lines[1]
    assert "% above the lower bound" in lines[1]
    assert len(repr(comparison.results[0])) < 6000  # all metrics, in one line each
    assert f"completion_mean_s={run.metrics['completion_mean_s']:.4g}" in repr(run)
    assert len(repr(run)) < 200


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"policy": 5}, ("policy", "5", "Policy object")),
        ({"seed": "a"}, ("seed", "'a'", "whole number")),
        ({"scenario": {"name": "x"}}, ("2 problems", "cluster: missing", "workload: missing")),
        ({"scenario": "cluster:\n  types: 3\n"}, ("cluster.types", "got 3", "a table")),
        ({"scenario": 7}, ("scenario", "is a int", "a Scenario")),
        ({"scenario": "elastic-training"}, ("another kind", "got 'elastic-training'", "trimtab.compare")),
        (
            {"scenario": {"kind": "shared"}},
            ("another kind", "kind", "got 'shared'", "a scenario of requests"),
        ),
        ({"cluster": {"types": {"a": {"memory": 1}}}}, ("cluster.types.a.memory", "memory_gib")),
        ({"trace": 3}, ("trace", "is a int", "a path")),
    ],
)
def test_wrong_types_are_named(arguments, parts):
    with pytest.raises(UsageError) as caught:
        tt.simulate(**{"scenario": "tiny", **arguments})
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(("policies", "part"), [([], "at least one policy"), (5, "is no policy")])
def test_compare_refuses_what_are_no_policies(policies, part):
    with pytest.raises(UsageError, match=part):
        tt.compare("tiny", policies=policies)


@pytest.mark.parametrize("seeds", ["a", 1.5, [0, "b"], {}])
def test_compare_refuses_what_are_no_seeds(seeds):
    with pytest.raises(UsageError, match="seeds"):
        tt.compare("tiny", policies="random", seeds=seeds)


def test_results_show_themselves_in_notebooks(run):
    comparison = tt.compare("tiny", policies=["random"], seeds=1, sweep=(), jobs=1)
    assert "random" in comparison._repr_html_()
    assert "<table" in run._repr_html_()


@pytest.fixture
def own(tmp_path) -> str:
    path = tmp_path / "own_policy.py"
    path.write_text(OWN)
    return str(path)


def test_own_policy_is_short_enough_for_the_readme():
    body = OWN[OWN.index("class NearestIdle") : OWN.index("if __name__")]
    lines = [line for line in body.splitlines() if line.strip() and '"""' not in line]
    assert len(["import trimtab as tt", *lines]) <= 15


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_own_policy_compiled_interpreted_and_plain_agree(own, mode):
    compiled = tt.simulate("tiny", f"{own}:NearestIdle", mode=mode).requests
    plain = tt.simulate("tiny", f"{own}:PlainNearestIdle", mode=mode).requests
    assert compiled.equals(plain)
    assert compiled["node_idx"].n_unique() > 1


def test_own_policy_in_a_comparison_of_several_processes(own):
    comparison = tt.compare("tiny", policies=["random", f"{own}:NearestIdle"], seeds=2, sweep=(), jobs=2)
    assert len(comparison.results) == 2


def test_own_kernel_that_does_not_compile_is_told(tmp_path):
    path = tmp_path / "own_policy.py"
    path.write_text(OWN.replace("tt.can_take(", "tt.can_taste("))
    with pytest.raises(tt.TrimtabError, match=r"NearestIdle.dispatch.*can_taste"):
        tt.simulate("tiny", f"{path}:NearestIdle", mode="compiled")


def test_policies_that_are_objects(own):
    class Stays(tt.Policy):
        @staticmethod
        def dispatch(view, plan, work, memory, draws, ranking):
            ranking[0] = 1
            return 1

    run = tt.simulate("tiny", Stays())
    assert run.policy == tt.simulate("tiny", Stays).policy == "Stays"
    assert set(run.requests["node_idx"].unique()) == {1}


def test_something_else_than_a_policy_is_refused():
    with pytest.raises(UsageError, match="policy"):
        tt.simulate("tiny", policy="fcfs")
