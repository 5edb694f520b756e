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


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of the command: a trace t.csv and a cluster c.yaml, policies of one's own in mine.py."""
    write_trace(tmp_path / "t.csv")
    write_cluster(tmp_path / "c.yaml")
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    (tmp_path / "broken.py").write_text("class Mine(")
    return tmp_path


def test_the_scenario_that_the_others_break_is_fine(cli, scenario):
    assert cli("run", scenario(), "--json").exit_code == 0


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("run tiny --policy least-expected-weight", ("least-expected-wait", "least-expected-weight")),
        ("compare tiny --policy least-expected-weight", ("least-expected-wait", "least-expected-weight")),
        ("run tiny --policy power-of-d(e=3)", ("e=3", "d")),
        ("run tiny --policy nowhere.py:Mine", ("nowhere.py", "can't be read")),
        ("run tiny --policy mine.py", ("mine.py:Class",)),
        ("run tiny --policy mine.py:Yours", ("mine.py", "Yours", "Mine")),
        ("run tiny --policy mine.py:NoPolicy", ("NoPolicy", "not a subclass")),
        ("run tiny --policy mine.py:NoDispatch", ("no dispatch",)),
        ("run tiny --policy broken.py:Mine", ("broken.py", "SyntaxError")),
        ("run tiny --policy no.such.module:Mine", ("no.such.module",)),
        ("run tinny", ("tinny", "tiny")),
        (
            "run elastic-training",
            ("elastic-training", "is of another kind of work", "`trimtab compare` takes all kinds"),
        ),
        (
            "run shared-cluster",
            ("shared-cluster", "is of another kind of work", "`trimtab compare` takes all kinds"),
        ),
        ("run nowhere.yaml", ("nowhere.yaml", "No such file")),
        ("run tiny --polcy random", ("--polcy",)),
        ("rum", ("rum",)),
        ("compare tiny --sort completion_mean", ("completion_mean_s",)),
        ("compare tiny --metric utilization_var", ("utilisation_var",)),
        *((f"run tiny --load {load}", ("load",)) for load in ("-0.5", "0", "nan", "inf")),
        *((f"compare tiny --seeds {seeds}", ("seeds",)) for seeds in (0, -3, "many", 10**9)),
        *((f"run tiny --seed {seed}", ("seed", str(seed), "2^63 - 1")) for seed in (2**63, 10**30)),
        ("run tiny --nodes fast=100000000", ("--nodes", "at most 1,000,000 nodes of a group")),
        ("run tiny --fail node[9]@1+1", ("--fail: no such node", "node[5]")),
        ("compare elastic-training --fail all@1+1", ("--fail: does not apply to training jobs",)),
        ("run --trace nowhere.csv --cluster c.yaml", ("nowhere.csv",)),
        ("run --trace t.csv", ("--cluster FILE",)),
        ("run --cluster c.yaml", ("c.yaml", "scenario", "--trace FILE")),
        (
            "run tiny --trace t.csv",
            ("t.csv", "classes", "no column class", "workload.trace.default_class", "class_column"),
        ),
        ("run tiny --start 10", ("--start", "--trace")),
        (
            "run --trace t.csv --cluster c.yaml --load 0.5 --rate-scale 2",
            ("--rate-scale: has no effect", "without --load"),
        ),
        ("trace show nowhere.csv", ("nowhere.csv",)),
        ("trace show t.csv --format mooncake", ("timestamp",)),
        ("trace show t.csv --format azzure", ("azzure", "azure-llm-2023")),
        (
            "trace show t.csv --start 5 --stop 2",
            ("--stop: cannot be used (got 2.0); expected more than --start, which is 5",),
        ),
        ("trace show t.csv --start 5000", ("no request is left",)),
        ("trace show t.csv --sample 2", ("--sample", "2")),
        ("trace show t.csv --rate-scale 0", ("--rate-scale", "0")),
        ("trace show t.csv --limit 0", ("--limit", "0")),
        ("trace show t.csv --start -1", ("--start", "-1")),
        ("trace make t.txt --rate 1 --mean 1 --size-cv 1", ("t.txt", ".csv")),
        ("trace download azure-llm-2023", ("azure-llm-2023-conv",)),
    ],
)
def test_a_command_that_cannot_be_is_refused(cli, files, command, parts):
    refused(cli(*command.split()), *parts)


@pytest.mark.parametrize(
    ("command", "old", "new", "parts"),
    [
        ("run", "classes:", "classes: [", ("s.yaml", "line ")),
        ("run", "memory_gib: 24", "memory_gb: 24", ("cluster.types.small", "memory_gib")),
        ("run", "count: 1", "count: -1", ("s.yaml", "cluster.nodes[1].count", "-1", "greater")),
        ("run", "rate_per_s: 1.0", "rate_per_s: -1.0", ("rate_per_s", "-1.0", "greater than 0")),
        ("compare", "classes:", "seeds: [1, 2, 1]\nclasses:", ("every value once",)),
        ("compare", "classes:", "sweep: {loads: [0.5, 0.5]}\nclasses:", ("every value once",)),
    ],
    ids=["malformed", "unknown key", "wrong value", "negative rate", "a seed twice", "a load twice"],
)
def test_a_scenario_that_cannot_be_is_refused(cli, scenario, command, old, new, parts):
    refused(cli(command, scenario(old, new)), *parts)


def test_faults_are_not_for_live_hosts(cli, scenario):
    faults = "faults: [{at_s: 1, duration_s: 1}]\nclasses:"
    refused(cli("run", scenario("classes:", faults), "--host", "live"), "faults")


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("Raises", ("Raises", "no idea", "request 17", " s")),
        ("Nonsense", ("Nonsense", "999", "request 0")),
    ],
)
def test_policy_that_fails_is_named_with_request_and_time(cli, files, policy, parts):
    refused(cli("run", "tiny", "--policy", f"mine.py:{policy}"), *parts, code=3)


def test_unknown_order(cli):
    result = cli("run", "tiny", "--policy", "random+fifo")
    refused(result, "fifo", "fcfs")
    assert "round-robin" not in result.stderr


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


def test_failing_policy_stops_a_comparison(cli, files):
    arguments = ("-p", "random", "-p", "mine.py:Raises", "-n", 2, "--no-sweep", "-q")
    refused(cli("compare", "tiny", *arguments), "Raises", "request 17", code=3)
    assert not (files / "trimtab-out" / "results.json").exists()


def test_names_are_never_markup(cli, scenario):
    named = scenario("classes:", "name: 'x [/y] z'\nclasses:")
    assert "x [/y] z" in cli("run", named, "--quiet").stdout


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
