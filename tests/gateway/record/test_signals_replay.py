"""A recording holds what policies read of nodes: its replay takes the decisions that the gateway took."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gateway.dispatch_bench import Asked, Bench, on_bench
from support.gateway.machines import CORES, LOADS, SERVICE_S, Machines
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.serving.replay import replay
from trimtab.gateway.app.recorder_setup import new_recorder
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.model import Outcome, Tenant
from trimtab.gateway.record.recorded_rows import Signals, UseThinning
from trimtab.gateway.record.recorder import RecordSettings
from trimtab.traces.gateway_format import VERSION, file_name

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

    async def test(bench: Bench) -> None:
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
    assert {entry.node for entry in scenario.background} >= {"n1", "n2", "n3"}
    level_frac = [entry.level_frac for entry in scenario.background if entry.node == "n3"]
    assert np.mean(level_frac) == pytest.approx(LOADS[3], abs=0.05)
    assert scenario.serving.resources == "reported"


LINK_MIB_PER_S, BODY_MIB, SERVED_S = 2.0, 8, 3.0


def written(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A recording by hand: one node behind a link, whose requests take `SERVED_S` without their transfer."""
    node = {"idx": 0, "name": "n", "type": "t", "slots": 4, "max_tokens": 0, "health": "up"}
    chat = {"name": "m/chat", "unit": "unit", "fixed_s": {"t": SERVED_S}, "unit_s": {"t": 0.0}}
    head = {"record": "head", "at_s": 0.0, "format": VERSION, "recording": "x", "worker": 0, "process": 1}
    head |= {"started_utc": "", "policy": "congestion-aware", "shadow": "", "seed": 0, "options": {}}
    of_nodes = {
        "weight": [1.0],
        "usd_per_hour": [0.0],
        "zone": ["a"],
        "nic_gib_per_s": [LINK_MIB_PER_S / 1024],
    }
    signals = {"record": "signals", "at_s": 0.0, "resources": [], "capacity": [[]], "demand": {}, **of_nodes}
    signals |= {"zones": ["a", "b"], "rtt_s": [[0.0, 0.0], [0.0, 0.0]], "zone_gib_per_s": [None, 0.5]}
    lines = [{**head, "nodes": [node], "classes": [{**chat, "served_by": None}]}, signals, *rows]
    name = file_name("20260101T000000Z-00000000", 0, 1)
    (folder / name).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def row(arrival_s: float, transfer_s: float, **more: Any) -> dict[str, Any]:
    service_s = SERVED_S + transfer_s
    times = {"arrival_s": arrival_s, "finish_s": arrival_s + service_s, "started_s": arrival_s}
    more |= {"kind": "chat", "class": "m/chat", "model": "m", "units": 1.0, "node": 0, "outcome": "done"}
    return {**times, "service_s": service_s, "transfer_s": transfer_s, **more}


def test_bodies_move_over_the_recorded_links_again(tmp_path: Path) -> None:
    """8 MiB over 2 MiB/s take 4 s; two at a time take 8 s."""
    alone_s = BODY_MIB / LINK_MIB_PER_S
    large = {"payload_bytes": BODY_MIB << 20}
    rows = [row(0.0, alone_s, **large), row(20.0, 2 * alone_s, **large), row(20.0, 2 * alone_s, **large)]
    written(tmp_path, [*rows, row(40.0, 0.0)])
    found = replay(tmp_path, mode="interpreted")
    assert found.live.mean_s == pytest.approx((7.0 + 11.0 + 11.0 + 3.0) / 4)
    assert abs(found.policies[0].error_frac.mean_s) < 1e-6
    assert abs(found.policies[0].error_frac.p99_s) < 1e-6
    cluster = scenario_of(tmp_path).cluster
    assert cluster.zones["b"].ingress_gib_per_s == 0.5
    assert cluster.zones["a"].ingress_gib_per_s is None


def test_a_transfer_is_recorded_apart_and_is_no_service_to_learn(tmp_path: Path) -> None:
    sent_s, served_s, body_bytes = 6.0, 2.0, 32 << 20

    async def test(bench: Bench) -> None:
        recorder = new_recorder(RecordSettings(tmp_path), bench.fleet, bench.dispatcher, lambda: "", TENANTS)
        assert recorder is not None
        await recorder.open()
        for body in (*[body_bytes] * 5, 1000):
            asked = bench.submit(Asked(tenant=TENANTS[0], body_bytes=body))
            attempt = asked.attempts[-1]
            attempt.begun_s = bench.loop.time()
            await asyncio.sleep(sent_s if body == body_bytes else 0.0)
            attempt.sent_s = bench.loop.time()
            await asyncio.sleep(served_s)
            asked.ended_s = attempt.ended_s = bench.loop.time()
            asked.outcome = Outcome.DONE
            bench.done(asked, attempt.ended_s - attempt.begun_s)
            recorder.ended([asked])
        (of,) = bench.dispatcher.registry.classes
        fixed_s, unit_s = bench.dispatcher.registry.estimates.of(of.key, "t")
        assert fixed_s + unit_s * asked.units == pytest.approx(served_s, rel=1e-3)
        await recorder.close()

    on_bench(test, "congestion-aware", {"max_requests": 1, "type_name": "t", "nic_gib_per_s": 0.5})
    (file,) = tmp_path.iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines() if not line.startswith('{"record"')]
    assert [one.get("payload_bytes") for one in rows] == [*[body_bytes] * 5, None]
    assert rows[0]["transfer_s"] == pytest.approx(sent_s)
    assert rows[0]["service_s"] == pytest.approx(sent_s + served_s)


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
