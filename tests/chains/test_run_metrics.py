"""Metrics and logs of running chains: counted by hand, read by Prometheus's own parser and server."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from support.ports import reserved_port
from support.prometheus import PROMETHEUS, ask_until, prometheus
from trimtab.chains import Session, StageContext, chain, run, stage
from trimtab.chains.metrics_server import MetricsServer, exposition
from trimtab.chains.run_metrics import STAGE_FAMILIES, StageMetrics
from trimtab.cli.app import app
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode

GATE: list[int] = []


@stage(deterministic=True)
def squares(n: int) -> list[int]:
    return [i * i for i in range(n)]


@stage(retries=1, backoff_s=0.0)
def checked(n: int, ctx: StageContext) -> int:
    if n == 4 or (n == 1 and ctx.attempt == 1):
        raise ValueError(n)
    return n


@stage
def total(items: list[int]) -> int:
    return sum(items)


@stage
def held(n: int) -> int:
    while not GATE:
        time.sleep(0.002)
    return n


@stage
def warned(text: str) -> str:
    logging.getLogger("mine").warning("look at %s", text)
    return text


@chain
def summed(n: int) -> Any:
    return total(checked.map(squares(n)))


@chain
def warning(text: str) -> Any:
    return warned(text)


def samples(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.labels.get("chain") == "summed":
                labels = tuple(v for k, v in sample.labels.items() if k != "chain")
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_the_counts_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    """Inputs 2 and 3, then 2 again: squares 0 1, 0 1 4, and a kept result.

    checked(1) is tried twice each time; checked(4) fails twice, so its input fails.
    """
    backend = InProcess([StageNode("one")])
    with Session(summed, on=backend, journal=tmp_path) as session:
        session.run(summed, [2, 3]).wait()
        session.run(summed, [2]).wait()
        found = samples(exposition(session.metrics))
    assert found["trimtab_stage_done_total"] == {("squares",): 3, ("checked",): 6, ("total",): 2}
    assert found["trimtab_stage_store_hits_total"] == {("squares",): 1, ("checked",): 0, ("total",): 0}
    assert found["trimtab_stage_failed_total"] == {("squares",): 0, ("checked",): 1, ("total",): 0}
    assert found["trimtab_stage_retries_total"][("checked",)] == 3 + 1
    assert found["trimtab_stage_attempts_failed_total"] == {("raised", "checked"): 3 + 2}
    assert found["trimtab_stage_service_seconds_count"] == {("squares",): 2, ("checked",): 6, ("total",): 2}
    buckets = [value for at, value in found["trimtab_stage_service_seconds_bucket"].items() if "total" in at]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2
    assert found["trimtab_chain_inputs_total"] == {("done",): 2, ("failed",): 1, ("cancelled",): 0}
    assert found["trimtab_chain_runs"] == {(): 0}
    assert all(value == 0 for value in found["trimtab_stage_queued"].values())
    assert found["trimtab_stage_output_bytes_total"][("total",)] > 0
    assert found["trimtab_stage_cost_error_ratio"][("total",)] >= 0


def test_the_error_of_the_expected_service_is_that_worked_out_by_hand() -> None:
    """2, 2, 4 s: nothing is expected of the first, then 2 s of both others: an error of 2 in 6 s."""

    @chain(name="summed")
    def waits(n: int) -> Any:
        return held(n)

    backend = SimulatedWorkers([StageNode("one")], {"summed/held": StandIn(lambda n: n)})
    with Session(waits, on=backend) as session:
        for seconds in (2, 2, 4):
            session.run(waits, [seconds]).wait()
        found = samples(exposition(session.metrics))
    assert found["trimtab_stage_cost_error_ratio"] == {("held",): pytest.approx(2.0 / 6.0)}


def test_what_waits_and_runs_is_seen_while_it_does() -> None:
    @chain(name="summed")
    def waits(n: int) -> Any:
        return held(n)

    GATE.clear()
    with Session(waits, on=InProcess([StageNode("one", slots=2)])) as session:
        handle = session.run(waits, range(5))
        while handle.counts.get("held") is None or handle.counts["held"].running < 2:
            time.sleep(0.002)
        found = samples(exposition(session.metrics))
        GATE.append(1)
        handle.wait()
    assert found["trimtab_stage_running"] == {("held",): 2}
    assert found["trimtab_stage_queued"] == {("held",): 3}
    assert found["trimtab_chain_runs"] == {(): 1}
    assert found["trimtab_chain_inputs_in_flight"] == {(): 5}


def test_a_taken_port_is_refused_and_the_page_served(tmp_path: Path) -> None:
    backend = InProcess([StageNode("one")])
    with Session(summed, on=backend, metrics_port=0) as session:
        assert session.metrics_port
        with pytest.raises(UsageError, match="metrics_port: metrics cannot be served there"):
            MetricsServer(StageMetrics(), session.metrics_port)
        url = f"http://127.0.0.1:{session.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} == {
        family.name for family in STAGE_FAMILIES
    }


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus")
def test_a_real_prometheus_scrapes_a_session(tmp_path: Path) -> None:
    with (
        reserved_port() as port,
        Session(summed, on=InProcess([StageNode("one")]), metrics_port=0) as session,
    ):
        session.run(summed, [2, 2, 2]).wait()
        targets = [{"targets": [f"127.0.0.1:{session.metrics_port}"]}]
        scrape = {"job_name": "chains", "scrape_interval": "1s", "static_configs": targets}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
        with prometheus(tmp_path / "prometheus.yml", port):
            done = ask_until(port, 'trimtab_stage_done_total{stage="checked"}')
    assert float(done[0]["value"][1]) == 6.0


def test_logs_carry_run_and_stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="trimtab.chains"):
        handle = run(summed, [3], on=InProcess([StageNode("one")]))
        handle.wait()
    told = [record for record in caplog.records if record.name == "trimtab.chains"]
    assert {vars(record)["run"] for record in told} == {handle.id}
    places = [(r["stage"], r["instance"], r["attempt"]) for r in map(vars, told) if "stage" in r]
    assert sorted(places) == [("checked", 1, 1), ("checked", 2, 1), ("checked", 2, 2)]
    assert "ValueError: 4" in caplog.text
    assert "is failed: 1 failed" in caplog.text


def test_records_of_stages_own_code_name_their_attempt(capfd: pytest.CaptureFixture[str]) -> None:
    handle = run(warning, ["this"], on=Processes([StageNode("one")]))
    handle.wait()
    told = capfd.readouterr().err
    assert f"WARNING [{handle.id}/0 warning/warned[0] attempt 1] mine: look at this" in told


def test_the_command_line_logs_to_a_file_and_keeps_stdout_for_results(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "from trimtab.chains import chain, stage\n@stage(retries=0)\ndef bad(n: int) -> int:\n"
        "    print('heard', n)\n    return 1 // n\n"
        "@chain\ndef line(n: int):\n    return bad(n)\n"
    )
    (tmp_path / "in.jsonl").write_text("1\n0\n")
    arguments = ["chain", "run", f"{tmp_path}/some.py:line", "--input", f"{tmp_path}/in.jsonl"]
    options = ["--on", "in-process", "--metrics-port", "0", "--log", f"{tmp_path}/log"]
    done = CliRunner().invoke(app, [*arguments, *options, "--journal", f"{tmp_path}/journal"])
    assert done.exit_code == 4
    assert "/metrics" in done.stderr
    assert done.stdout == '{"input": 0, "output": 1}\n'
    assert "heard 1\n" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    failed = [line for line in lines if "stage" in line]
    assert [(line["stage"], line["input"], line["cause"]) for line in failed] == [("bad", 1, "raised")]
    assert "ZeroDivisionError" in failed[0]["trace"]
    assert len({line["run"] for line in lines}) == 1
