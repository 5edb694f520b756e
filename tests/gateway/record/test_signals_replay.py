"""A recording holds what policies read of nodes: its replay takes the decisions that the gateway took."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gateway.machines import CORES, LOADS, SERVICE_S, Machines
from support.gateway.signal_bench import Asked, SignalBench, on_bench
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.serving.replay import replay
from trimtab.gateway.decide.declared import Declared
from trimtab.gateway.model import Outcome, Tenant
from trimtab.gateway.record.recorder import RecordSettings
from trimtab.gateway.record.signal_rows import Signals, UseThinning
from trimtab.gateway.recorder_setup import new_recorder

SLOTS, REQUESTS, SEEDS, LOAD = 8, 400, 3, 0.15
CPU: Mapping[str, Any] = {"resources": {"cpu_cores": CORES}}
TENANTS = [Tenant("alice", 0), Tenant("bob", 1)]


def recorded(
    folder: Path,
    policy: str,
    seed: int,
    nodes: list[Mapping[str, Any]],
    rtt_s: Sequence[float] | None = None,
    **rules: Any,
) -> None:
    """Requests to partly busy machines, each of a type of its own: the gateway learns how slow it is."""
    TENANTS[1].weight = 3.0

    async def test(bench: SignalBench) -> None:
        rng = np.random.default_rng(seed)
        recorder = new_recorder(RecordSettings(folder), bench.fleet, bench.dispatcher, lambda: "", TENANTS)
        assert recorder is not None
        await recorder.open()

        def ended(asked: Asked) -> None:
            asked.ended_s, asked.outcome = bench.loop.time(), Outcome.DONE
            asked.started_s = asked.attempts[-1].begun_s
            recorder.ended([asked])

        machines = Machines(bench, np.random.default_rng(1000 + seed), [1e6] * len(LOADS))
        machines.ended = ended
        if rtt_s is None:
            machines.busy[:] = LOADS
        else:
            machines.rtt_s[:] = rtt_s
        reports = asyncio.ensure_future(machines.reports())
        await bench.settle()
        gap_s, requests = SERVICE_S / (len(LOADS) * SLOTS * LOAD), []
        for k in range(REQUESTS):
            await asyncio.sleep(rng.exponential(gap_s))
            asked = Asked(tenant=TENANTS[k % 2])
            asked.priority = k  # only to name its factor: no order reads it
            requests.append(asyncio.ensure_future(machines.serve(asked)))
        await asyncio.gather(*requests)
        reports.cancel()
        await recorder.close()

    entries = [{"max_requests": SLOTS, "type_name": f"t{k}", **node} for k, node in enumerate(nodes)]
    on_bench(test, policy, *entries, **rules)


def leave_out(folder: Path, *records: str) -> None:
    """Remove these lines, which earlier versions did not write."""
    starts = tuple(f'{{"record":"{record}"'.encode() for record in records)
    for file in folder.iterdir():
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if not line.startswith(starts)))


def error_frac(folder: Path) -> float:
    """Error of the predicted mean completion."""
    return replay(folder, mode="interpreted").policies[0].error_frac.mean_s


def test_reports_of_busy_nodes_predict_the_mean_under_a_policy_that_reads_them(tmp_path: Path) -> None:
    with_them, without = [], []
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        recorded(folder, "load-aware", seed, [CPU] * len(LOADS))
        with_them.append(error_frac(folder))
        leave_out(folder, "use")
        without.append(error_frac(folder))
    assert max(map(abs, with_them)) <= 0.05, (with_them, without)
    assert min(map(abs, without)) > 0.10, (with_them, without)


def test_a_recorded_round_trip_is_no_service(tmp_path: Path) -> None:
    """A far node serves as fast as a near one, a round trip later: the replay counts that once."""
    far_s = 1.5
    declared = Declared(zone="near", rtt_s={("near", "far"): far_s})
    nodes = [{"zone": "near" if k % 2 else "far", "usd_per_hour": k} for k in range(len(LOADS))]
    recorded(
        tmp_path, "round-robin", 0, nodes, [0.0 if k % 2 else far_s for k in range(4)], declared=declared
    )
    assert abs(error_frac(tmp_path)) <= 0.01
    cluster = scenario_of(tmp_path).cluster
    assert [group.zone for group in cluster.nodes] == ["far", "near", "far", "near"]
    assert cluster.zone_names[0] == "near"
    assert cluster.rtt_s["near"]["far"] == far_s  # type: ignore[index]  # a table
    assert [cluster.types[group.type].usd_per_hour for group in cluster.nodes] == [0.0, 1.0, 2.0, 3.0]


def test_a_recording_says_what_requests_take_and_what_they_cost(tmp_path: Path) -> None:
    declared = Declared(demand={"m": {"cpu_cores": 0.25}})
    nodes = [{**CPU, "weight": 1.0 + k} for k in range(len(LOADS))]
    recorded(tmp_path, "load-aware", 0, nodes, declared=declared, holding_cost={"m": 2.5})
    scenario = scenario_of(tmp_path)
    (chat,) = scenario.classes.values()
    assert chat.demand == {"cpu_cores": 0.25}
    assert chat.holding_cost == 2.5
    assert list(scenario.workload.tenant_weights.values()) == [3.0]
    assert TENANTS[1].name not in scenario.workload.tenant_weights  # a pseudonym
    assert [group.weight for group in scenario.cluster.nodes] == [1.0, 2.0, 3.0, 4.0]
    assert all(kind.resources == {"cpu_cores": CORES} for kind in scenario.cluster.types.values())
    assert {entry.node for entry in scenario.background} >= {"n1-1", "n2-1", "n3-1"}
    level_frac = [entry.level_frac for entry in scenario.background if entry.node == "n3-1"]
    assert np.mean(level_frac) == pytest.approx(LOADS[3], abs=0.05)
    assert scenario.serving.resources == "reported"


def test_a_recording_without_signals_replays_as_before(tmp_path: Path) -> None:
    recorded(tmp_path, "least-connections", 0, [CPU] * len(LOADS))
    leave_out(tmp_path, "signals", "use")
    scenario = scenario_of(tmp_path)
    assert scenario.background == ()
    assert scenario.cluster.resource_names == ()
    assert abs(error_frac(tmp_path)) < 0.25


def test_use_is_recorded_where_it_changes_and_anew_in_each_file() -> None:
    def news(*frac: float) -> dict[str, dict[str, float]]:
        return thinning.changed(Signals(resources=["cpu_cores"], used_by_others_frac=[[f] for f in frac]))

    thinning = UseThinning()
    assert news(0.5, 0.0) == {"0": {"cpu_cores": 0.5}}
    assert news(0.51, 0.01) == {}
    assert news(0.53, 0.01) == {"0": {"cpu_cores": 0.53}}
    thinning.forget()
    assert news(0.0, 0.01) == {"0": {"cpu_cores": 0.0}}
