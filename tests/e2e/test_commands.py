"""Every command does what its help says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars as pl
import pytest
import yaml

from conftest import process
from support.e2e_files import CLUSTER, OWN_POLICY, write_cluster, write_trace
from trimtab import __version__
from trimtab.metrics import METRICS
from trimtab.policies import names
from trimtab.training.allocator_catalogue import allocator_names
from trimtab.training.job_metrics import JOB_METRICS

COMMANDS = [
    [],
    ["compare"],
    ["run"],
    ["serve"],
    ["policies"],
    ["policies", "show"],
    ["metrics"],
    ["scenario"],
    ["scenario", "list"],
    ["scenario", "show"],
    ["scenario", "check"],
    ["scenario", "schema"],
    ["trace"],
    ["trace", "show"],
    ["trace", "make"],
    ["trace", "convert"],
    ["trace", "list"],
    ["trace", "download"],
    ["solve"],
    ["solve", "gap"],
    ["forecast"],
    ["warmup"],
]
NAMES_TO_RELY_ON = (
    "completion_mean_s",
    "completion_p50_s",
    "completion_p99_s",
    "completion_var_s2",
    "queueing_mean_s",
    "queueing_p99_s",
    "utilisation_var",
    "utilisation_mean_frac",
    "idle_frac",
    "rejected_frac",
    "slo_attained_frac",
    "throughput_per_s",
    "makespan_s",
    "jain_tenants",
    "model_loads",
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(cli, command):
    result = cli(*command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    with_placeholder = [line for line in result.stdout.splitlines() if "<bool>" in line]
    assert all("-completion" in line for line in with_placeholder)  # typer's own
    assert "trimtab" in result.stdout


def test_help_documents_the_exit_codes(cli):
    text = " ".join(cli("--help").stdout.split())
    codes = "0 done · 1 internal error · 2 wrong usage or input · 3 a policy failed"
    later = "4 inputs of a chain failed · 5 a rerun has other figures · 6 a trace reveals people"
    assert f"{codes} · {later} · 130 interrupted" in text


def test_version(cli):
    assert cli("--version").stdout == f"trimtab {__version__}\n"


def test_run_prints_a_table(cli):
    result = cli("run", "tiny", "--policy", "power-of-d(d=3)+edf", "--seed", 1)
    assert result.exit_code == 0
    assert "power-of-d(d=3)+edf on tiny, seed 1" in result.stdout
    assert "completion mean" in result.stdout
    assert "Lower bound" in result.stdout


def test_run_json_has_plain_numbers(cli):
    result = cli("run", "tiny", "--policy", "least-connections", "--json")
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert (found["scenario"], found["policy"], found["seed"]) == ("tiny", "least-connections", 0)
    assert set(METRICS) == set(found["metrics"])
    assert all(isinstance(found["metrics"][name], int | float) for name in NAMES_TO_RELY_ON)
    assert 0 < found["bound"]["completion_mean_s"] < found["metrics"]["completion_mean_s"]
    assert found["bound"]["method"]
    assert found["bound"]["assumptions"]
    assert found["versions"]["trimtab"] == __version__


def test_runs_of_one_seed_are_equal_and_of_another_not(cli):
    def metrics(seed: int) -> dict[str, float]:
        return json.loads(cli("run", "tiny", "--policy", "random", "--seed", seed, "--json").stdout)[
            "metrics"
        ]

    assert metrics(0) == metrics(0) != metrics(1)


def test_load_is_what_was_asked_for(cli):
    found = json.loads(cli("run", "tiny", "--load", 0.5, "--json").stdout)
    assert found["offered_load"] == pytest.approx(0.5)


def test_live_run_ends_with_the_same_table(cli):
    arguments = ("run", "tiny", "--policy", "least-connections", "--host", "live", "--speed", 2000, "--json")
    found = json.loads(cli(*arguments).stdout)
    assert found["metrics"]["finished_frac"] == 1.0
    assert set(found["metrics"]) == set(METRICS)


def test_a_policy_of_a_package_in_this_folder(tmp_path):
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "own.py").write_text(OWN_POLICY)
    arguments = ("-p", "mypackage.own:Mine", "-p", "random", "-n", 2, "--no-sweep", "-j", 2, "--json")
    done = process("compare", "tiny", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["policy"] == "mypackage.own:Mine"


def test_compare_writes_results_and_says_where(cli, tmp_path):
    result = cli(
        "compare", "tiny", "-p", "random", "-p", "least-expected-wait", "-n", 2, "--no-sweep", "-j", 1
    )
    assert result.exit_code == 0, result.stderr
    assert "least-expected-wait" in result.stdout
    assert "Lower bound" in result.stdout
    out = tmp_path / "trimtab-out"
    found = json.loads((out / "results.json").read_text())
    assert [r["policy"] for r in found["results"]] == ["random", "least-expected-wait"]
    assert (out / "report.html").stat().st_size < 6e6
    records = pl.read_parquet(sorted((out / "requests" / "random").glob("*.parquet")))
    assert records.height == 2 * found["requests"]
    assert not list(out.glob(".unfinished*"))
    for name in ("results.json", "report.html", "requests"):
        assert f"trimtab-out/{name}" in result.stderr


def test_compare_json_is_one_object_and_nothing_else(cli):
    result = cli(
        "compare", "tiny", "-p", "random", "-p", "power-of-d", "-n", 2, "--no-sweep", "-j", 1, "--json"
    )
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert found["scenario"] == "tiny"
    assert found["bound"].keys() >= {"completion_mean_s", "method", "assumptions"}
    for policy in found["results"]:
        for name in NAMES_TO_RELY_ON:
            assert policy["metrics"][name].keys() == {"mean", "ci95"}


def test_compare_without_a_report(cli, tmp_path):
    assert cli("compare", "tiny", "-p", "random", "-n", 1, "--no-sweep", "--no-report").exit_code == 0
    assert not (tmp_path / "trimtab-out" / "report.html").exists()


def test_compare_says_what_decisions_take_when_asked(cli):
    arguments = ("tiny", "-p", "random", "-p", "round-robin+edf", "-n", 1, "--no-sweep", "--timing")
    timing = json.loads(cli("compare", *arguments, "--json").stdout)["timing"]
    assert [row["policy"] for row in timing] == ["random", "round-robin+edf"]
    assert all(row["decision_s"] > 0.0 and row["plans"] == 0 for row in timing)
    assert all(row["plan_mean_s"] is None and row["n_nodes"] == 6 for row in timing)
    assert "decision" in cli("compare", *arguments).stdout


def test_compare_agrees_with_run(cli):
    arguments = ("tiny", "-p", "least-connections", "--json")
    compared = json.loads(cli("compare", *arguments, "-n", 1, "--no-sweep").stdout)["results"][0]["metrics"]
    run = json.loads(cli("run", *arguments).stdout)["metrics"]
    assert {name: value["mean"] for name, value in compared.items()} == run


def test_compare_sorts_by_the_metric_asked_for(cli):
    policies = ("-p", "random", "-p", "least-expected-wait")
    result = cli(
        "compare", "tiny", *policies, "-n", 1, "--no-sweep", "--sort", "queueing_p99_s", "-m", "model_loads"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.index("least-expected-wait") < result.stdout.index("random")
    assert "loads" in result.stdout


def test_own_trace_on_own_cluster(cli, tmp_path):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    found = json.loads(cli("run", "--trace", trace, "--cluster", cluster, "--json").stdout)
    assert found["requests"] == 50
    assert found["metrics"]["finished_frac"] == 1.0


def test_trace_options_choose_requests(cli, tmp_path):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    given = ("run", "--trace", trace, "--cluster", cluster, "--json")
    # one request a second: 10 … 29
    assert json.loads(cli(*given, "--start", 10, "--stop", 30).stdout)["requests"] == 20
    assert json.loads(cli(*given, "--limit", 7).stdout)["requests"] == 7
    slow, fast = (json.loads(cli(*given, "--rate-scale", s).stdout)["offered_load"] for s in (1, 4))
    assert fast == pytest.approx(4 * slow)


def test_policies_lists_the_catalogue(cli):
    listed = json.loads(cli("policies", "--json").stdout)["policies"]
    assert [policy["name"] for policy in listed] == [*names(), *allocator_names()]
    assert all(policy["idea"] and policy["source"] for policy in listed)
    table = cli("policies").stdout
    assert all(name in table for name in (*names(), *allocator_names()))


def test_each_kind_of_work_has_its_catalogue_and_metrics(cli):
    listed = json.loads(cli("policies", "--kind", "training", "--json").stdout)["policies"]
    assert {policy["kind"] for policy in listed} == {"training"}
    assert cli("policies", "show", "tiresias").stdout.startswith("tiresias (training)")
    assert "thresholds" in cli("policies", "show", "tiresias").stdout
    # a name of both catalogues
    assert cli("policies", "show", "edf").stdout.startswith("edf (order)")
    assert cli("policies", "show", "edf", "--kind", "training").stdout.startswith("edf (training)")
    assert cli("policies", "show", "nobody").exit_code == 2
    found = json.loads(cli("metrics", "--kind", "training", "--json").stdout)["metrics"]
    assert [metric["name"] for metric in found] == list(JOB_METRICS)


@pytest.mark.parametrize("name", names())
def test_policies_show(cli, name):
    result = cli("policies", "show", name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name} (")
    assert "Source" in result.stdout
    usage = result.stdout.split("--policy ")[-1].strip().strip("'")
    assert cli("run", "tiny", "--policy", usage, "--json").exit_code == 0


def test_metrics_lists_all(cli):
    assert [m["name"] for m in json.loads(cli("metrics", "--json").stdout)["metrics"]] == list(METRICS)
    assert "utilisation_var" in cli("metrics").stdout


def test_scenario_can_be_printed_edited_and_run(cli, tmp_path):
    text = cli("scenario", "show", "tiny").stdout
    assert yaml.safe_load(text)["name"] == "tiny"
    edited = tmp_path / "my.yaml"
    edited.write_text(text.replace("name: tiny", "name: mine").replace("requests: 300", "requests: 30"))
    checked = json.loads(cli("scenario", "check", edited, "--json").stdout)
    assert (checked["scenario"], checked["requests"], checked["nodes"]) == ("mine", 30, 6)
    assert json.loads(cli("run", edited, "--json").stdout)["requests"] == 30


def test_scenario_list_and_schema(cli):
    listed = [s["name"] for s in json.loads(cli("scenario", "list", "--json").stdout)["scenarios"]]
    assert {"aigc-images", "llm-chat", "tiny"} <= set(listed)
    assert "tiny" in cli("scenario", "list").stdout
    assert json.loads(cli("scenario", "schema").stdout)["properties"]["cluster"]


def test_trace_make_show_convert(cli, tmp_path):
    made = cli("trace", "make", "t.csv", "-n", 500, "--rate", 20, "--mean", 3, "--size-cv", 0.5, "--seed", 4)
    assert made.exit_code == 0, made.stderr
    shown = json.loads(cli("trace", "show", "t.csv", "--json").stdout)
    assert shown["rows"] == 500
    assert shown["rate_per_s"] == pytest.approx(20, rel=0.2)
    assert shown["size"]["mean"] == pytest.approx(3, rel=0.2)
    assert cli("trace", "convert", "t.csv", "u.parquet", "--start", 5, "--stop", 10).exit_code == 0
    cut = pl.read_parquet(tmp_path / "u.parquet")
    assert 0 < cut.height < 500
    assert 0 <= cut["arrival_s"][0] < cut["arrival_s"][-1] < 5


@pytest.mark.parametrize(
    "options",
    [
        ("--arrivals", "gamma", "--rate", 5, "--cv", 3, "--sizes", "exponential", "--mean", 2),
        (
            "--arrivals",
            "mmpp",
            "--rates",
            "5,50",
            "--sojourns",
            "60,10",
            "--sizes",
            "pareto",
            "--mean",
            2,
            "--alpha",
            3,
        ),
        (
            "--arrivals",
            "diurnal",
            "--rate",
            5,
            "--peak-to-trough",
            4,
            "--period",
            60,
            "--sizes",
            "constant",
            "--value",
            1,
        ),
    ],
    ids=lambda options: options[1],
)
def test_trace_make_processes(cli, tmp_path, options):
    assert cli("trace", "make", "t.jsonl", "-n", 20, *options).exit_code == 0
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 20


def test_trace_make_from_sizes_of_another(cli, tmp_path):
    source = write_trace(tmp_path / "source.csv")
    made = cli("trace", "make", "t.csv", "-n", 40, "--rate", 1, "--sizes", "empirical", "--from", source)
    assert made.exit_code == 0, made.stderr
    with (tmp_path / "t.csv").open() as file:
        sizes = {float(row["size"]) for row in csv.DictReader(file)}
    assert sizes <= {1.0, 2.0, 3.0}


def test_trace_show_draws_and_writes_a_page(cli, tmp_path):
    trace = write_trace(tmp_path / "t.csv")
    result = cli("trace", "show", trace, "--html", "t.html")
    assert result.exit_code == 0, result.stderr
    assert "50" in result.stdout
    assert "<html" in (tmp_path / "t.html").read_text(encoding="utf-8")[:200]


def test_trace_show_tells_what_a_work_unit_is(cli, tmp_path):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n2023-11-16 18:15:47,300,30\n"
    )
    shown = cli("trace", "show", trace).stdout
    assert "size, in work units: output tokens + 0.05 × prompt tokens" in shown
    assert "Prompt tokens" in shown
    found = json.loads(cli("trace", "show", trace, "--json").stdout)
    assert found["tokens"]["prompt_tokens"]["mean"] == 200.0
    assert found["tokens"]["output_tokens"]["max"] == 30.0
    assert found["size"]["mean"] == pytest.approx(20 + 0.05 * 200)


def test_trace_show_tells_what_it_does_not_use(cli, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,length,colour\n0,1,red\n1,2,blue\n")
    shown = cli("trace", "show", trace).stdout
    assert "size, in work units: missing" in shown
    assert "unused columns: length, colour" in shown


def test_trace_list(cli):
    listed = json.loads(cli("trace", "list", "--json").stdout)["traces"]
    assert "azure-llm-2023-conv" in [trace["name"] for trace in listed]
    assert "azure-llm-2023-conv" in cli("trace", "list").stdout


def test_run_writes_results(cli, tmp_path):
    result = cli("run", "tiny", "--out", "here", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "here" / "results.json").read_text()) == json.loads(result.stdout)
    assert pl.read_parquet(tmp_path / "here" / "requests.parquet").height == 300
    assert (tmp_path / "here" / "report.html").exists()


def test_examples_of_clusters_are_valid(cli, tmp_path):
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("arrival_s,size,prompt_tokens,output_tokens\n0,20,200,10\n1,30,300,15\n")
    for file in sorted(CLUSTER.glob("*.yaml")):
        trace = tokens if file.name.startswith("llm-") else write_trace(tmp_path / "t.csv")
        assert cli("run", "--trace", trace, "--cluster", file, "--json").exit_code == 0, file


def test_compare_says_which_policies_meet_objectives(cli, tmp_path: Path):
    asked = ("compare", "tiny", "--seeds", "1", "--no-sweep", "--out", tmp_path, "--quiet")
    slo = ("--slo", "completion_p99<1000s, completion_mean<1ms")
    found = json.loads(cli(*asked, *slo, "--json").stdout)
    easy, hard = found["met_by"]
    assert set(found["met_by"][easy]) == {each["policy"] for each in found["results"]}
    assert found["met_by"][hard] == []
    assert f"{hard}: met by no policy" in cli(*asked, *slo).stdout
    refused = cli("compare", "elastic-training", "--slo", "ttft_p99<1s")
    assert (refused.exit_code, "ttft_p99_s" in refused.stderr) == (2, True)


def test_quiet_says_nothing_on_stderr(cli, tmp_path: Path):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    assert cli("run", "--trace", trace, "--cluster", cluster, "--quiet").stderr == ""
