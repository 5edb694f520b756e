"""Folders of results are repeated from themselves alone, and what has changed is told."""

from __future__ import annotations

import json

import polars as pl
import pytest
import yaml

from support.e2e_files import OWN_POLICY, write_cluster, write_trace
from support.shared_clusters import small_shared


@pytest.fixture
def results(cli, tmp_path):
    """A comparison of a trace, with a policy in a file of its own."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,out,id,team\n" + "".join(f"{i},{1 + i % 3},r{i},red\n" for i in range(40)))
    (tmp_path / "own.py").write_text(OWN_POLICY)
    done = cli(
        *("compare", "--trace", "t.csv", "--cluster", write_cluster(tmp_path / "c.yaml"), "--no-sweep"),
        *("--map", "arrival_s=arrival_s", "--map", "output_tokens=out", "--map", "original_id=id"),
        *("--keep", "team", "--policy", "random", "--policy", "own.py:Mine", "--seeds", 2, "--jobs", 1),
    )
    assert done.exit_code == 0, done.stderr
    return tmp_path / "trimtab-out"


def test_a_comparison_is_repeated_and_a_changed_figure_is_found(cli, results, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # nothing depends on the folder of the command
    again = cli("rerun", results, "--jobs", 1)
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("equal: all ")

    told = json.loads((results / "results.json").read_text())
    told["results"][0]["metrics"]["completion_mean_s"]["mean"] += 1e-9
    told["versions"]["numpy"] = "1.0"
    (results / "results.json").write_text(json.dumps(told))
    (tmp_path / "own.py").write_text(OWN_POLICY + "# changed\n")
    again = cli("rerun", results, "--jobs", 1)
    assert again.exit_code == 5
    assert "different: 1 of " in again.stdout
    assert "results[random].metrics.completion_mean_s.mean" in again.stdout
    assert "own.py has another content than before" in again.stderr
    assert "numpy was 1.0" in again.stderr


def test_a_trace_that_moved_is_named_and_can_be_given(cli, results, tmp_path):
    (tmp_path / "t.csv").rename(tmp_path / "moved.csv")
    gone = cli("rerun", results)
    assert gone.exit_code == 2
    assert "t.csv" in gone.stderr
    assert "--trace FILE" in gone.stderr
    found = cli("rerun", results, "--trace", tmp_path / "moved.csv", "--json", "--jobs", 1)
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["is_equal"]


def test_the_place_of_the_trace_is_found_whatever_file_comes_first(cli, results, tmp_path):
    told = json.loads((results / "results.json").read_text())
    told["made_by"]["files"] = dict(reversed(told["made_by"]["files"].items()))
    assert next(iter(told["made_by"]["files"])).endswith("own.py")
    (results / "results.json").write_text(json.dumps(told))
    (tmp_path / "t.csv").rename(tmp_path / "moved.csv")
    found = cli("rerun", results, "--trace", tmp_path / "moved.csv", "--jobs", 1)
    assert found.exit_code == 0, found.stderr
    assert "another content" not in found.stderr


def test_records_join_the_users_own_log(results, tmp_path):
    records = pl.read_parquet(results / "requests" / "random" / "seed-0.parquet")
    assert records["original_id"].to_list() == [f"r{i}" for i in range(40)]
    assert records["output_tokens"].to_list() == [1 + i % 3 for i in range(40)]
    assert records["team"].unique().to_list() == ["red"]
    of_index = dict(records.select("node_idx", "node").unique().rows())
    assert of_index == {0: "big-1", 1: "big-2", 2: "small-1"}


def test_a_single_run_is_repeated_too(cli, tmp_path):
    assert cli("run", "tiny", "--policy", "random", "--seed", 3, "--out", "one").exit_code == 0
    again = cli("rerun", "one")
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("equal: all ")
    no_trace = cli("rerun", "one", "--trace", "one/results.json")
    assert no_trace.exit_code == 2
    assert "takes no place here" in no_trace.stderr


def test_training_jobs_are_repeated_with_their_trace_elsewhere(cli, tmp_path):
    trace, cluster = tmp_path / "jobs.csv", tmp_path / "c.yaml"
    trace.write_text("job_id,submission_time,num_gpu,duration\na,0,4,100\nb,10,8,50\nc,20,1,30\n")
    cluster.write_text("types: {node: {accelerators: 4, memory_gib: 64}}\nnodes: [{type: node, count: 2}]\n")
    jobs = ("--trace", trace, "--cluster", cluster, "-p", "fifo", "--no-sweep", "--no-report", "--jobs", 1)
    assert cli("compare", *jobs).exit_code == 0
    moved = trace.rename(tmp_path / "moved.csv")
    again = cli("rerun", "trimtab-out", "--trace", moved, "--jobs", 1)
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("equal: all ")


def test_a_shared_cluster_is_repeated_too(cli, tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small_shared()))
    assert cli("compare", "small.yaml", "-p", "lending", "--no-report", "--jobs", 1).exit_code == 0
    again = cli("rerun", "trimtab-out", "--jobs", 1)
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("equal: all ")


def test_what_holds_no_results_is_refused(cli, tmp_path):
    write_trace(tmp_path / "t.csv")
    assert "holds no results" in cli("rerun", tmp_path).stderr
    (tmp_path / "results.json").write_text('{"results": []}')
    old = cli("rerun", tmp_path)
    assert old.exit_code == 2
    assert "made_by" in old.stderr
