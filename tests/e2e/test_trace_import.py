"""An odd log of one's own, from the file to a comparison, by the command line alone."""

from __future__ import annotations

import json

import polars as pl
import pytest

from support.e2e_files import write_cluster

LOG = "Datum;Kunde;in_tok;out_tok;status\n" + "".join(
    f"{13 + i // 40:02}/11/2026 10:{i % 40:02}:05;Müller{i % 3};{i};{'N/A' if i == 7 else 10 + i};200\n"
    for i in range(60)
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(LOG.encode("latin-1"))
    return path


def test_import_tells_what_is_wrong_then_writes_a_trace_and_a_mapping_that_compare_reads(cli, log, tmp_path):
    undecoded = cli("trace", "import", log, "--out", "t.parquet")
    assert undecoded.exit_code == 2
    assert "--encoding latin-1" in undecoded.stderr
    bad = cli("trace", "import", log, "--out", "t.parquet", "--encoding", "latin-1")
    assert bad.exit_code == 2
    assert "line 9, column out_tok" in bad.stderr
    done = cli("trace", "import", log, "--out", "t.parquet", "--encoding", "latin-1", "--on-bad-row", "drop")
    assert done.exit_code == 0, done.stderr
    assert "%d/%m/%Y %H:%M:%S" in done.stdout  # what the column seems to be
    assert "dropped 1 row: missing value of out_tok, line 9" in done.stderr
    table = pl.read_parquet("t.parquet")
    assert table.height == 59
    assert table["arrival_s"][-1] == 86_400.0 + 19 * 60.0
    cluster = write_cluster(tmp_path / "cluster.yaml")
    ways = (["--trace", log, "--mapping", "t.mapping.yaml"], ["--trace", "t.parquet"])
    means = []
    for way in ways:
        run = cli("run", *way, "--cluster", cluster, "--json", "--policy", "random")
        assert run.exit_code == 0, run.stderr
        means.append(json.loads(run.stdout)["metrics"]["completion_mean_s"])
    assert means[0] == means[1] > 0


def test_import_in_json_and_with_names_of_ones_own(cli, log):
    options = [
        "--encoding",
        "latin-1",
        "--where",
        "out_tok > 20",
        "--map",
        "tenant=status",
        "--keep",
        "Kunde",
    ]
    done = cli("trace", "import", log, "--out", "t.csv", *options, "--json")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["requests"] == 49
    assert summary["dropped"] == {"not out_tok > 20": 11}
    assert pl.read_csv("t.csv")["tenant"].unique().to_list() == [200]
    assert "Kunde" in pl.read_csv("t.csv").columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--map", "output_tokens"], "--map: cannot be used (got 'output_tokens'); expected NAME=COLUMN"),
        (["--map", "tokens=out_tok"], "--map: cannot be used"),
        (["--map", "arrival_s=Date"], "perhaps 'Datum'"),
        (["--fill", "output_tokens=x"], "--fill: cannot be used"),
        (["--time-zone", "Mars"], "--time-zone: cannot be used (got 'Mars')"),
        (["--where", "stat == 1"], "perhaps 'status'"),
        (["--mapping", "none.yaml"], "none.yaml"),
    ],
)
def test_options_that_cannot_be_used(cli, log, options, message):
    done = cli(
        "trace", "import", log, "--out", "t.csv", "--encoding", "latin-1", "--on-bad-row", "drop", *options
    )
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
