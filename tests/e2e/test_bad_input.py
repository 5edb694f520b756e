"""What cannot be used ends with a message that helps and the documented exit code, never with a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer

from support.e2e_files import CLUSTER_TEXT, OWN_POLICY, write_cluster, write_trace
from trimtab.cli import main

SCENARIO = f"""
cluster:{CLUSTER_TEXT.replace(chr(10), chr(10) + "  ")}
classes:
  chat: {{unit_s: 0.1}}
workload:
  generate:
    requests: 20
    arrival: {{process: poisson, rate_per_s: 1.0}}
    mix: {{chat: {{share: 1, size: 5}}}}
"""


def refused(result, *parts: str, code: int = 2) -> None:
    """Whether a command ended with this exit code and a message that has all of these parts."""
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.fixture
def scenario(tmp_path: Path):
    def write(old: str = "", new: str = "") -> Path:
        assert old in SCENARIO
        path = tmp_path / "s.yaml"
        path.write_text(SCENARIO.replace(old, new, 1) if old else SCENARIO)
        return path

    return write


def test_the_scenario_that_the_others_break_is_fine(cli, scenario):
    assert cli("run", scenario(), "--json").exit_code == 0


@pytest.mark.parametrize("command", ["run", "compare"])
def test_unknown_policy_names_the_nearest(cli, command):
    result = cli(command, "tiny", "--policy", "least-expected-weight")
    refused(result, "least-expected-wait", "least-expected-weight")


def test_unknown_order(cli):
    result = cli("run", "tiny", "--policy", "random+fifo")
    refused(result, "fifo", "fcfs")
    assert "round-robin" not in result.stderr


def test_unknown_parameter_of_a_policy(cli):
    refused(cli("run", "tiny", "--policy", "power-of-d(e=3)"), "e=3", "d")


def test_unknown_scenario_names_the_nearest(cli):
    refused(cli("run", "tinny"), "tinny", "tiny")


@pytest.mark.parametrize("name", ["elastic-training", "shared-cluster"])
def test_a_scenario_of_another_kind_names_the_command_for_it(cli, name):
    refused(cli("run", name), "is of another kind of work", name, "`trimtab compare` takes all kinds")


def test_unknown_metric_names_the_nearest(cli):
    refused(cli("compare", "tiny", "--sort", "completion_mean"), "completion_mean_s")
    refused(cli("compare", "tiny", "--metric", "utilization_var"), "utilisation_var")


def test_malformed_yaml_names_the_line(cli, scenario):
    refused(cli("run", scenario("classes:", "classes: [")), "s.yaml", "line ")


def test_unknown_key_names_the_nearest(cli, scenario):
    refused(cli("run", scenario("memory_gib: 24", "memory_gb: 24")), "cluster.types.small", "memory_gib")


def test_wrong_value_names_field_value_and_what_was_expected(cli, scenario):
    result = cli("run", scenario("count: 1", "count: -1"))
    refused(result, "s.yaml", "cluster.nodes[1].count", "-1", "greater")


def test_negative_rate(cli, scenario):
    result = cli("run", scenario("rate_per_s: 1.0", "rate_per_s: -1.0"))
    refused(result, "rate_per_s", "-1.0", "greater than 0")


@pytest.mark.parametrize("load", [-0.5, 0, "nan", "inf"])
def test_impossible_load(cli, load):
    refused(cli("run", "tiny", "--load", load), "load")


def test_missing_scenario_file(cli):
    refused(cli("run", "nowhere.yaml"), "nowhere.yaml", "No such file")


def test_missing_trace_file(cli, tmp_path):
    cluster = write_cluster(tmp_path / "c.yaml")
    refused(cli("run", "--trace", "nowhere.csv", "--cluster", cluster), "nowhere.csv")
    refused(cli("trace", "show", "nowhere.csv"), "nowhere.csv")


def test_trace_without_cluster(cli, tmp_path):
    refused(cli("run", "--trace", write_trace(tmp_path / "t.csv")), "--cluster FILE")


def test_cluster_without_anything_that_runs_on_it(cli, tmp_path):
    refused(cli("run", "--cluster", write_cluster(tmp_path / "c.yaml")), "c.yaml", "scenario", "--trace FILE")


def test_trace_that_names_no_class_for_a_scenario_with_several(cli, tmp_path):
    result = cli("run", "tiny", "--trace", write_trace(tmp_path / "t.csv"))
    refused(result, "t.csv", "classes", "no column class", "workload.trace.default_class", "class_column")


def test_trace_options_without_a_trace(cli):
    refused(cli("run", "tiny", "--start", 10), "--start", "--trace")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("empty",)),
        ("arrival_s,size\n", ("no requests",)),
        ("when,size\n0,1\n", ("not recognised", "when")),
        ("arrival_s,size\n0,1\nNaN,1\n", ("line 3", "arrival_s")),
        ("arrival_s,size\n0,1\n1,NaN\n", ("line 3", "size")),
        ("arrival_s,size\n0,1\n5,1\n4,1\n", ("line 4", "not sorted")),
        ("arrival_s,size\n0,1\n1,-2\n", ("line 3", "-2")),
        ("arrival_s,size\n0,1\n1,two\n", ("line 3", "two")),
    ],
    ids=["empty", "header-only", "columns", "nan-arrival", "nan-size", "unsorted", "negative", "text"],
)
def test_traces_that_are_none(cli, tmp_path, text, parts):
    trace, cluster = tmp_path / "t.csv", write_cluster(tmp_path / "c.yaml")
    trace.write_text(text)
    refused(cli("run", "--trace", trace, "--cluster", cluster, "-q"), "t.csv", *parts)
    refused(cli("trace", "show", trace, "-q"), "t.csv", *parts)


def test_missing_columns_of_a_named_format(cli, tmp_path):
    refused(cli("trace", "show", write_trace(tmp_path / "t.csv"), "--format", "mooncake"), "timestamp")


def test_unknown_trace_format(cli, tmp_path):
    result = cli("trace", "show", write_trace(tmp_path / "t.csv"), "--format", "azzure")
    refused(result, "azzure", "azure-llm-2023")


def test_slice_that_ends_before_it_begins(cli, tmp_path):
    result = cli("trace", "show", write_trace(tmp_path / "t.csv"), "--start", 5, "--stop", 2)
    refused(result, "--stop: cannot be used (got 2.0); expected more than --start, which is 5")


def test_slice_that_leaves_nothing(cli, tmp_path):
    refused(cli("trace", "show", write_trace(tmp_path / "t.csv"), "--start", 5000), "no request is left")


@pytest.mark.parametrize(
    ("option", "value"), [("--sample", 2), ("--rate-scale", 0), ("--limit", 0), ("--start", -1)]
)
def test_impossible_trace_options(cli, tmp_path, option, value):
    refused(cli("trace", "show", write_trace(tmp_path / "t.csv"), option, value), option, str(value))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--rate", -1, "--mean", 1, "--size-cv", 1), ("--rate", "-1")),
        (("--mean", 1, "--size-cv", 1), ("--rate", "missing")),
        (("--rate", 1, "--cv", 2, "--mean", 1, "--size-cv", 1), ("--cv", "does not apply")),
        (("--rate", 1, "--sizes", "normal"), ("--sizes", "normal", "lognormal")),
        (("--arrivals", "mmpp", "--rates", "1;2", "--sojourns", "1,2"), ("--rates", "1;2")),
        (("--arrivals", "mmpp", "--rates", "1,2,3", "--sojourns", "1,2"), ("same length",)),
    ],
    ids=["negative", "missing", "does-not-apply", "unknown", "no-numbers", "lengths"],
)
def test_trace_make_refuses(cli, tmp_path, options, parts):
    refused(cli("trace", "make", "t.csv", *options), *parts)
    assert not (tmp_path / "t.csv").exists()


def test_trace_make_to_an_unknown_kind_of_file(cli):
    refused(cli("trace", "make", "t.txt", "--rate", 1, "--mean", 1, "--size-cv", 1), "t.txt", ".csv")


def test_unknown_public_trace(cli):
    refused(cli("trace", "download", "azure-llm-2023"), "azure-llm-2023-conv")


@pytest.mark.parametrize("seeds", [0, -3, "many", 10**9])
def test_impossible_numbers_of_seeds(cli, seeds):
    refused(cli("compare", "tiny", "--seeds", seeds), "seeds")


def test_more_seeds_than_memory_allows(cli, monkeypatch):
    monkeypatch.setattr("trimtab.experiments.machine.memory_bytes", lambda: 1 << 20)
    refused(cli("compare", "tiny", "--seeds", 5000), "seeds", "GiB", "fewer seeds")


def test_more_records_than_the_disk_holds(cli, tmp_path, monkeypatch):
    """40 bytes each of 300 requests, for three seeds of one policy: 36 kB."""
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=35_999))
    refused(cli("compare", "tiny", "-p", "random"), "seeds", "free disk", "trimtab-out")
    assert not (tmp_path / "trimtab-out").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=36_000))
    assert cli("compare", "tiny", "-p", "random", "--no-sweep").exit_code == 0


@pytest.mark.parametrize("command", ["compare", "run"])
def test_unwritable_out_folder(cli, tmp_path, command):
    (tmp_path / "file").write_text("in the way")
    result = cli(command, "tiny", "-p", "random", "--out", "file/out")
    refused(result, "file/out", "writable folder")  # before anything ran: it prints no table
    assert (tmp_path / "file").read_text() == "in the way"


def test_far_too_many_nodes_are_refused_at_once(cli):
    refused(cli("run", "tiny", "--nodes", "fast=100000000"), "--nodes", "at most 1,000,000 nodes of a group")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system without room")
def test_a_place_that_is_no_disk_is_refused_as_unwritable(cli):
    refused(cli("compare", "tiny", "-p", "random", "--out", "/proc/x"), "/proc/x", "can't write there")


def test_unwritable_page(cli, tmp_path):
    trace = write_trace(tmp_path / "t.csv")
    result = cli("trace", "show", trace, "--html", "t.csv/page.html")
    assert result.exit_code == 2
    assert "t.csv/page.html" in result.stderr


def test_request_that_fits_no_node_is_named(cli, scenario):
    models = "models:\n  huge: {memory_gib: 500}\nclasses:"
    path = scenario("classes:", models)
    path.write_text(path.read_text().replace("chat: {unit_s: 0.1}", "chat: {unit_s: 0.1, model: huge}", 1))
    result = cli("run", path)
    assert result.exit_code == 0
    assert "20 requests fit no node and were rejected (0, 1, 2, 3, 4, …)" in result.stderr


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("nowhere.py:Mine", ("nowhere.py", "can't be read")),
        ("mine.py", ("mine.py:Class",)),
        ("mine.py:Yours", ("mine.py", "Yours", "Mine")),
        ("mine.py:NoPolicy", ("NoPolicy", "not a subclass")),
        ("mine.py:NoDispatch", ("no dispatch",)),
        ("broken.py:Mine", ("broken.py", "SyntaxError")),
        ("no.such.module:Mine", ("no.such.module",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_policy_files_that_are_none(cli, tmp_path, spec, parts):
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    (tmp_path / "broken.py").write_text("class Mine(")
    refused(cli("run", "tiny", "--policy", spec), *parts)


def test_policy_that_raises_names_policy_request_and_time(cli, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    refused(cli("run", "tiny", "--policy", "mine.py:Raises"), "Raises", "no idea", "request 17", " s", code=3)


def test_policy_that_answers_nonsense(cli, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    refused(cli("run", "tiny", "--policy", "mine.py:Nonsense"), "Nonsense", "999", "request 0", code=3)


def test_failing_policy_stops_a_comparison(cli, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    arguments = ("-p", "random", "-p", "mine.py:Raises", "-n", 2, "--no-sweep", "-q")
    refused(cli("compare", "tiny", *arguments), "Raises", "request 17", code=3)
    assert not (tmp_path / "trimtab-out" / "results.json").exists()


def test_unknown_option_and_command(cli):
    refused(cli("run", "tiny", "--polcy", "random"), "--polcy")
    refused(cli("rum"), "rum")


def test_faults_are_not_for_live_hosts(cli, scenario):
    faults = "faults: [{at_s: 1, duration_s: 1}]\nclasses:"
    refused(cli("run", scenario("classes:", faults), "--host", "live"), "faults")


def test_names_are_never_markup(cli, scenario):
    named = scenario("classes:", "name: 'x [/y] z'\nclasses:")
    assert "x [/y] z" in cli("run", named, "--quiet").stdout


@pytest.mark.parametrize("seed", [2**63, 10**30])
def test_impossible_seed(cli, seed):
    refused(cli("run", "tiny", "--seed", str(seed)), "seed", str(seed), "2^63 - 1")


@pytest.mark.parametrize("line", ["seeds: [1, 2, 1]", "sweep: {loads: [0.5, 0.5]}"])
def test_the_same_run_twice(cli, scenario, line):
    refused(cli("compare", scenario("classes:", f"{line}\nclasses:")), "every value once")


def test_two_policies_of_one_name(cli, tmp_path):
    text = 'import trimtab as tt\nclass P(tt.Policy):\n    name = "mine"\n    def dispatch(*_): return 0\n'
    files = [tmp_path / "before.py", tmp_path / "after.py"]
    for file in files:
        file.write_text(text)
    one, other = (f"{file}:P" for file in files)
    refused(cli("compare", "tiny", "-p", one, "-p", other), "two different policies", "'mine'")


def test_policy_whose_parameters_do_not_suit_it(cli, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import dataclass\nimport trimtab as tt\n"
        "@dataclass(frozen=True)\nclass P(tt.Policy):\n"
        "    k: int = 1\n    def __post_init__(self): raise ValueError('k is odd')\n"
        "    def dispatch(*_): return 0\n"
    )
    refused(cli("run", "tiny", "-p", f"{file}:P"), "can't be made: k is odd")


def test_rate_scale_beside_a_load_is_refused_and_what_if_on_training_jobs_too(cli, tmp_path):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    both = cli("run", "--trace", trace, "--cluster", cluster, "--load", "0.5", "--rate-scale", "2")
    refused(both, "--rate-scale: has no effect", "without --load")
    refused(
        cli("compare", "elastic-training", "--fail", "all@1+1"), "--fail: does not apply to training jobs"
    )
    refused(cli("run", "tiny", "--fail", "node[9]@1+1"), "--fail: no such node", "node[5]")


def test_too_little_memory_is_told_and_is_no_fault(monkeypatch, capsys):
    def fail(**_):
        raise MemoryError("Unable to allocate 149. GiB")

    monkeypatch.setattr(typer.main, "get_command", lambda _: fail)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "not enough memory: Unable to allocate 149. GiB; expected fewer" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["afile/x", "folder"])
def test_a_file_that_cannot_be_written_is_refused_before_any_work(cli, tmp_path, out):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    (tmp_path / "afile").write_text("")
    (tmp_path / "folder").mkdir()
    refused(cli("trace", "import", trace, "--out", out), "can't write there", out)
    refused(cli("fit", trace, "--cluster", cluster, "--out", out), "can't write there", out)
    sized = cli("size", trace, "--node-types", cluster, "--slo", "completion_p99<9", "--out", out)
    refused(sized, "can't write there", out)
