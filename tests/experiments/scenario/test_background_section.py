"""The section `background` and errors of reports: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.serving.run import run_on_clock, simulate

TEXT = """
name: busy
cluster:
  types: {big: {memory_gib: 8, slots: 2, resources: {cpu_cores: 8, ram_gib: 16}}}
  nodes: [{type: big, count: 4}]
classes: {job: {unit_s: 0.1, demand: {cpu_cores: 4}}}
workload:
  generate:
    requests: 50
    arrival: {process: poisson, rate_per_s: 2}
    mix: {job: {share: 1, size: {distribution: constant, value: 1}}}
"""


def scenario(tmp_path: Path, further: str):  # type: ignore[no-untyped-def]
    file = tmp_path / "busy.yaml"
    file.write_text(TEXT + further)
    return load_scenario(file)


def test_an_entry_becomes_a_process_of_each_node(tmp_path: Path) -> None:
    found = scenario(
        tmp_path,
        "background:\n"
        "  - {node: big-2, resource: ram_gib, level_frac: 0.5, slowdown_frac: 0.4, at_s: 3, duration_s: 4}\n"
        "  - {resource: cpu_cores, level_frac: 0.25, on_s: 5, off_s: 7, share_frac: 0.5}\n",
    )
    rows = build(found, 0).options.faults
    assert rows is not None
    assert (rows["node_idx"][0], rows["resource"][0], rows["amount"][0]) == (1, 2, 8.0)
    assert (rows["start_s"][0], rows["end_s"][0], rows["mtbf_s"][0]) == (3.0, 7.0, np.inf)
    assert rows["factor"][0] == pytest.approx(1 - 0.4 * 0.5)
    assert len(rows) == 3
    assert set(rows["amount"][1:]) == {2.0}
    assert set(rows["mtbf_s"][1:]) == {7.0}
    assert set(rows["mttr_s"][1:]) == {5.0}
    assert set(rows["factor"][1:]) == {1.0}


def test_errors_of_reports_by_resource(tmp_path: Path) -> None:
    found = scenario(tmp_path, "serving: {telemetry: {period_s: 1, noise_frac: {ram_gib: 0.3}}}")
    noise = build(found, 0).options.report_noise_frac
    assert noise is not None
    np.testing.assert_array_equal(noise, [0.0, 0.3])


@pytest.mark.parametrize(
    ("further", "field", "expected"),
    [
        ("background: [{resource: gpu_milli, level_frac: 0.5}]", "background[0].resource", "cpu_cores"),
        ("background: [{resource: disk, level_frac: 0.5}]", "background[0].resource", "cpu_cores"),
        ("background: [{resource: cpu_cores, level_frac: 1.5}]", "background[0].level_frac", "1"),
        ("background: [{resource: cpu_cores, level_frac: 0.5, node: x}]", "background[0].node", "big-1"),
        ("background: [{resource: cpu_cores, level_frac: 0.5, on_s: 3}]", "background[0]", "on_s and off_s"),
        (
            "background: [{resource: cpu_cores, level_frac: 0.5, on_s: 3, off_s: 2, at_s: 1}]",
            "background[0]",
            "either at_s and duration_s",
        ),
        (
            "serving: {telemetry: {noise_frac: {cpu_cores: 0.1}}}",
            "serving.telemetry",
            "a period_s above 0 together with noise_frac",
        ),
        (
            "serving: {telemetry: {period_s: 1, noise_frac: {gpu_milli: 0.1}}}",
            "serving.telemetry.noise_frac",
            "cpu_cores",
        ),
    ],
)
def test_bad_input_is_refused_with_its_place(tmp_path: Path, further: str, field: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(tmp_path, further)
    message = str(refused.value)
    assert "busy.yaml" in message
    assert field in message
    assert expected in message


def test_a_policy_that_sees_the_load_does_better_than_one_that_does_not(tmp_path: Path) -> None:
    """Half of the nodes have no room for a second request, and serve at 60 % of their speed."""
    entry = "{node: big-%d, resource: cpu_cores, level_frac: 0.5, slowdown_frac: 0.8}"
    busy = "background:\n" + "".join(f"  - {entry % j}\n" for j in (1, 2))
    mean_s = {
        name: simulate(scenario(tmp_path, busy), name).metrics["completion_mean_s"]
        for name in ("load-aware", "least-connections")
    }
    assert mean_s["load-aware"] < 0.95 * mean_s["least-connections"]


def test_live_runs_have_no_slow_downs_of_the_scenario(tmp_path: Path) -> None:
    entry = "background: [{resource: cpu_cores, level_frac: 0.5, slowdown_frac: 0.5}]"
    with pytest.raises(UsageError, match="background without slowdown_frac"):
        run_on_clock(scenario(tmp_path, entry), "load-aware")
