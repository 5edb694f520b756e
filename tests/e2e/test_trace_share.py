"""`trimtab trace share` from the recording to a comparison on what was shared; and all that it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from support.privacy import requests

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "share-a-trace.md"
SCENARIO = """
name: two classes
policies: [random, round-robin, least-connections, late-binding, least-expected-wait, jiq]
cluster:
  types:
    big: {memory_gib: 80, slots: 4, usd_per_hour: 4}
    small: {memory_gib: 24, slots: 2, speed: 0.5, usd_per_hour: 1}
  nodes: [{type: big, count: 2}, {type: small, count: 2}]
classes:
  chat: {unit_s: 0.02}
  batch: {unit_s: 0.03}
workload:
  load: 0.8
  generate:
    requests: 20
    arrival: {process: poisson, rate_per_s: 1.0}
    mix: {chat: {share: 1, size: 5}}
"""
TYPES = """
types:
  big: {memory_gib: 80, slots: 4, usd_per_hour: 4}
  small: {memory_gib: 24, slots: 2, speed: 0.5, usd_per_hour: 1}
classes:
  chat: {unit_s: 0.02}
  batch: {unit_s: 0.03}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    requests(4000).with_columns(user=pl.Series([f"u{k % 997}" for k in range(4000)])).write_csv(path)
    (tmp_path / "fleet.yaml").write_text(SCENARIO)
    (tmp_path / "types.yaml").write_text(TYPES)
    return path


def share(cli, log, *options: str, out: str = "shared.csv"):
    return cli("trace", "share", log, "--out", out, "--ledger", "ledger.json", *options)


def test_a_shared_trace_is_one_for_every_command_and_its_cost_is_remembered(cli, log):
    done = share(cli, log, "--epsilon", "2", "--public", "class=chat,batch", "--budget", "2.5")
    assert done.exit_code == 0, done.stderr
    assert "of budget %" in done.stdout
    assert "ε 2 of 2.5" in done.stderr
    about = json.loads(Path("shared.share.json").read_text())
    assert about["promise"]["epsilon"] == 2.0
    assert sum(cost["share_frac"] for cost in about["costs"]) == pytest.approx(1.0)
    assert about["public"]["names"] == {"class": ["chat", "batch"]}
    assert "log" not in json.dumps(about)
    run = cli("run", "fleet.yaml", "--trace", "shared.csv", "--json", "-p", "late-binding")
    assert run.exit_code == 0, run.stderr
    sized = cli(
        *("size", "shared.csv", "--node-types", "types.yaml", "--slo", "completion_p99<60s", "--json"),
        *("--max-nodes", "8"),
    )
    assert sized.exit_code == 0, sized.stderr
    again = share(cli, log, "--epsilon", "2", out="again.csv")
    assert again.exit_code == 2
    assert "is spent" in again.stderr
    assert "which is left" in again.stderr
    assert not list(Path().glob("again*"))


def test_the_check_stays_with_the_owner(cli, log):
    options = [
        "--check",
        "fleet.yaml",
        "--seeds",
        "2",
        "--slo",
        "completion_p99<60s",
        "--node-types",
        "types.yaml",
    ]
    done = share(cli, log, "--epsilon", "4", "--public", "class=chat,batch", "--json", *options)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    checked = json.loads(Path("shared.check.json").read_text())
    assert "owner alone" in checked["for"]
    assert checked["policies"] == 6
    assert checked["mean_tau"] > 0.5
    assert len(checked["best_five"]) == 5
    assert checked["best_five"][0]["mean_s"][1] == pytest.approx(
        checked["best_five"][0]["mean_s"][0], rel=0.5
    )
    assert len(checked["fleet"]["usd_per_hour"]) == 2
    assert told["check"]["mean_tau"] == checked["mean_tau"]
    assert "check" not in json.loads(Path("shared.share.json").read_text())


def test_units_of_a_column_that_is_kept_and_a_source_that_is_synthetic(cli, log):
    done = share(cli, log, "--epsilon", "8", "--unit", "user", "--bound", "4", "--keep", "user")
    assert done.exit_code == 0, done.stderr
    about = json.loads(Path("shared.share.json").read_text())
    assert about["promise"]["neighbours"] == "with and without one user"
    assert "user" not in pl.read_csv("shared.csv").columns
    again = share(cli, "shared.csv", "--epsilon", "4", out="twice.csv")
    assert again.exit_code == 0, again.stderr
    assert "itself synthetic (ε 8)" in again.stderr


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--epsilon", "0"], ["--epsilon", "above 0"]),
        (["--epsilon", "nan"], ["--epsilon", "above 0"]),
        (["--epsilon", "1", "--delta", "0.01"], ["--delta", "below 1/4000"]),
        (["--epsilon", "0.01"], ["too small a table", "at least"]),
        (["--epsilon", "1", "--unit", "team"], ["--unit", "tenant"]),
        (["--epsilon", "1", "--public", "colour=red"], ["--public", "class, tenant"]),
        (["--epsilon", "1", "--public", "class"], ["--public", "class=chat,batch"]),
        (["--epsilon", "1", "--limit", "9"], ["--limit", "--stop"]),
        (["--epsilon", "1", "--sample", "0.5"], ["--sample", "--stop"]),
        (["--epsilon", "1", "--on-bad-row", "fill"], ["--on-bad-row", "drop"]),
        (["--epsilon", "1", "--out", "log.csv"], ["--out", "overwrite the source"]),
        (["--epsilon", "1", "--out", "log.xlsx"], ["unknown kind of file"]),
        (["--epsilon", "1", "--out", "gone/s.csv"], ["can't write"]),
        (["--epsilon", "1", "--check", "no-such"], ["no-such"]),
        (["--epsilon", "1", "--slo", "completion_p99<1s"], ["--node-types"]),
        (["--epsilon", "1", "--budget", "0.5"], ["--epsilon", "budget", "0.5"]),
        (["--epsilon", "1", "--budget", "-1"], ["--budget"]),
        (["--epsilon", "1", "--map", "arrival_s=nowhere"], ["nowhere"]),
    ],
)
def test_what_is_refused_spends_nothing_and_leaves_nothing(cli, log, options, parts):
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    refused = share(cli, log, *options)
    assert refused.exit_code == 2, refused.stderr
    assert refused.stdout == ""
    assert "Traceback" not in refused.stderr
    for part in parts:
        assert part in refused.stderr
    after = {
        path.name: path.read_bytes() for path in Path().iterdir() if not path.name.startswith("ledger.json")
    }
    assert after == before
    if Path("ledger.json").exists():
        assert json.loads(Path("ledger.json").read_text())["entries"] == []


def test_commands_of_the_guide(cli, log, tmp_path, monkeypatch):
    """Each as it stands, in their order."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    commands = [
        line for text in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S) for line in text.splitlines()
    ]
    assert len(commands) >= 4
    for command in commands:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command.partition("  #")[0])]
        done = cli(*words[1:])
        assert done.exit_code == 0, (command, done.stderr)
