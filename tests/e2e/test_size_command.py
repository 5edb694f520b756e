"""`trimtab size`: from a trace and node types to a cluster file that meets the objective."""

from __future__ import annotations

import json

from support.e2e_files import write_trace

TYPES = """
types:
  fast: {memory_gib: 80, usd_per_hour: 3.1, speed: 2.0}
  slow: {memory_gib: 24, usd_per_hour: 1.0, speed: 0.7}
classes:
  chat: {unit_s: 1.0}
"""


def test_the_fleet_that_is_found_meets_the_objective_in_a_run_of_its_own(cli, tmp_path):
    types = tmp_path / "types.yaml"
    types.write_text(TYPES)
    trace = write_trace(tmp_path / "t.csv")
    done = cli(
        "size", trace, "--node-types", types, "--slo", "completion_p99<4s", "--html", "s.html", "--json"
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_met"]
    assert found["is_proven"]
    run = cli("run", "--trace", trace, "--cluster", "fleet.yaml", "--policy", "late-binding", "--json")
    assert (
        json.loads(run.stdout)["metrics"]["completion_p99_s"]
        == found["best"]["metrics"]["completion_p99_s"]
        < 4
    )
    assert (tmp_path / "s.html").stat().st_size < 2e6


def test_a_miss_is_told_and_mistakes_are_refused(cli, tmp_path):
    types = tmp_path / "types.yaml"
    types.write_text(TYPES)
    trace = write_trace(tmp_path / "t.csv")
    miss = cli("size", trace, "--node-types", types, "--slo", "completion_p99<0.1s", "--max-nodes", 3)
    assert miss.exit_code == 0
    assert "no fleet meets the objectives; the nearest is" in miss.stderr
    assert "completion_p99_s" in miss.stderr
    bad = cli("size", trace, "--node-types", types, "--slo", "completion_p98<1s")
    assert bad.exit_code == 2
    assert "perhaps 'completion_p99_s'" in bad.stderr
