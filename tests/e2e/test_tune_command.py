"""`trimtab tune`: from a workload to a file that other commands take as a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from conftest import Cli
from support.splits import POLICIES, SCENARIO

TUNE = ("--candidates", 6, "--jobs", 1)


@pytest.fixture
def tuned(cli: Cli, tmp_path: Path) -> Path:
    """The folder that `trimtab tune` wrote."""
    (tmp_path / "own.py").write_text(POLICIES)
    (tmp_path / "split.yaml").write_text(SCENARIO.replace("REQUESTS", "2000"))
    done = cli("tune", "split.yaml", "--policy", "own.py:Split", *TUNE, "--out", "out")
    assert done.exit_code == 0, done.stderr
    assert "gain: own.py:Split(fast=" in done.stdout
    assert "tested on 500 requests, 5 seeds" in done.stdout
    return tmp_path / "out"


def test_what_is_found_is_taken_by_other_commands(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    found = yaml.safe_load((tuned / "tuned.yaml").read_text())
    value = found["validation"]["values"]["fast"]
    assert found["policy"] == f"{tmp_path / 'own.py'}:Split(fast={value})"
    assert found["made_by"]["files"][str(tmp_path / "own.py")]
    assert (found["verdict"], found["tuning"]["seed"]) == ("gain", 0)
    low, high = found["test"]["changes"]["completion_mean_s"]["ci95_frac"]
    assert low < found["test"]["changes"]["completion_mean_s"]["change_frac"] < high
    assert sorted(path.name for path in tuned.iterdir()) == ["report.html", "results.json", "tuned.yaml"]

    compared = cli(
        *("compare", "split.yaml", "--policy", "out/tuned.yaml", "--policy", "own.py:Split", "--seeds", 2),
        *("--no-sweep", "--jobs", 1, "--json", "--out", "compared"),
    )
    assert compared.exit_code == 0, compared.stderr
    assert {r["policy"] for r in json.loads(compared.stdout)["results"]} == {
        "own.py:Split",
        found["policy"],
    }
    (tuned / "tuned.yaml").unlink()  # results know the policy itself
    assert cli("rerun", "compared", "--jobs", 1).exit_code == 0

    again = cli("rerun", "out", "--jobs", 1)
    assert again.exit_code == 0, again.stdout
    assert again.stdout.startswith("equal: all ")


def test_results_know_a_policy_of_the_catalogue_without_the_file(cli: Cli, tmp_path: Path) -> None:
    given = tmp_path / "tuned.yaml"
    given.write_text("policy: late-binding(ageing=1.2)\n")
    compared = cli(
        *("compare", "tiny", "--policy", "tuned.yaml", "--policy", "random", "--seeds", 2),
        *("--no-sweep", "--jobs", 1, "--out", "compared"),
    )
    assert compared.exit_code == 0, compared.stderr
    given.unlink()
    again = cli("rerun", "compared", "--jobs", 1)
    assert again.exit_code == 0, again.stderr


def test_the_gateway_takes_it_from_its_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "tuned.yaml").write_text("policy: late-binding(ageing=1.2)\n")
    nodes = "nodes: [{name: a, url: 'http://127.0.0.1:1', capacity: 1}]\n"
    (tmp_path / "gateway.yaml").write_text(f"{nodes}policy: policies/tuned.yaml\n")
    checked = cli("serve", "gateway.yaml", "--check", "--insecure-no-auth")
    assert checked.exit_code == 0, checked.stderr
    assert "policy late-binding(ageing=1.2)" in checked.stdout
    checked = cli("serve", "gateway.yaml", "--check", "--insecure-no-auth", "--policy", "policies/tuned.yaml")
    assert checked.exit_code == 0, checked.stderr


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("tiny",), ("requests", "300", "at least 2,000")),
        (("llm-chat", "--objective", "speed"), ("--objective", "'speed'", "METRIC")),
        (("llm-chat", "--policy", "random"), ("policy", "'random'", "says its range")),
        (("none.csv",), ("TRACE|SCENARIO", "'none.csv'", "aigc-images")),
        (("llm-chat", "--candidates", "2"), ("--candidates: too few (got 2)", "at least 6")),
        (("llm-chat", "--candidates", "-1"), ("--candidates: too few (got -1)", "at least 6")),
        (("llm-chat", "--policy", "bad.yaml"), ("bad.yaml", "policy", "names no policy")),
    ],
)
def test_refusals(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    (tmp_path / "bad.yaml").write_text("policy: 3\n")
    refused = cli("tune", *arguments)
    assert refused.exit_code == 2
    assert all(part in refused.stderr for part in parts), refused.stderr
