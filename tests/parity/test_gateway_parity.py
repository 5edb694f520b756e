"""The gateway over transports in memory, in virtual time, and the simulator: same nodes, same times.

All of the gateway's data plane and its deciding side are at work; only sockets and clocks are not real.
Telemetry is fresh, nothing is retried, limited or ejected, and the estimates are given. At equal times both
take completions, then what was scheduled, then arrivals. One tie is left out, as no live host can know of it:
a plan or a deadline that falls on the time of several completions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, cast
from zlib import crc32

import numpy as np
import orjson
import pytest

from support.choosing_policies import PlainCompletion
from support.conformance_cases import in_turn
from support.gateway.virtual import VirtualLoop, Wire, run_virtual
from support.learned import NETWORKS, decider_with_weights
from support.planning_policies import Steering
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import TRUTH, Requests, Status
from trimtab.domain.view import new_work
from trimtab.engine.simulator import run
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.decide.dispatch_rules import DispatchRules, PolicyChoice
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.decide.learning import ClassKey, NewEstimate, ServiceEstimates
from trimtab.gateway.http.client_connection import ClientConnection
from trimtab.gateway.http.connection_context import Settings
from trimtab.gateway.http.data_plane import DataPlane, make_context
from trimtab.gateway.model import Attempt, Cause, Exchange, Kind, Outcome, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.gateway.tenancy.admission import Admission
from trimtab.live.clock import Rank
from trimtab.policies.catalogue import find, names
from trimtab.validation.queue_section import QueueSpec

MODELS = ("a", "b", "c")
SPEEDS = {"slow": 1.0, "middling": 1.7, "fast": 2.9}
NODES = [("slow", 2), ("slow", 1), ("middling", 3), ("middling", 2), ("fast", 1), ("fast", 2)]
WEIGHTS = {"slow": 1.0, "middling": 2.0, "fast": 3.0}
CAPACITY_PER_S = 18.0  # requests, about: 20 slots of speed 1, 1.1 s each
N_TENANTS = 3
NEVER_S = float("inf")


@dataclass(frozen=True)
class Case:
    """What comes and how much of it may wait."""

    n: int = 120
    load: float = 0.9
    held_max: int = 1000
    max_wait_s: float = 1e6
    on_grid: bool = False  # times at multiples of half a second: nearly every event has another at its time
    deadlines: bool = True
    seed: int = 5
    queues: Mapping[str, QueueSpec] | None = None  # of tenants 0, 1 and others


OUTPUT_WEIGHT = 2.0
CASES = {
    "busy": Case(load=1.2),
    "full": Case(load=2.0, held_max=15, max_wait_s=0.4, deadlines=False),
    "equal times": Case(on_grid=True, deadlines=False, load=1.1),
}
QUEUES = {
    "m": QueueSpec(
        guarantee=0.8,
        limit=0.9,
        queues={
            "x": QueueSpec(guarantee=0.75, notice_s=0.05, tenants=("0",)),
            "y": QueueSpec(weight=3.0, limit=0.5, order="priority", tenants=("1",)),
        },
    ),
    "default": QueueSpec(max_running=7, notice_s=0.3, guarantee=0.2),
}
QUEUED = {
    "queues": Case(load=1.3, deadlines=False, queues=QUEUES),
    "queues at equal times": Case(load=1.2, on_grid=True, deadlines=False, queues=QUEUES),
}


@dataclass(frozen=True)
class Trace:
    """Requests as clients send them. Arrays [requests]."""

    arrival_s: np.ndarray
    chars: np.ndarray
    model: np.ndarray
    tenant: np.ndarray
    priority: np.ndarray
    deadline_ms: np.ndarray  # 0 = none
    factor: np.ndarray  # true service over its estimate


def trace(case: Case) -> Trace:
    rng = np.random.default_rng(case.seed)
    n, rate_per_s = case.n, case.load * CAPACITY_PER_S
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, n))
    if case.on_grid:
        arrival_s = np.ceil(arrival_s * 2.0) / 2.0
    return Trace(
        arrival_s=arrival_s,
        chars=15 * rng.integers(1, 5, n) if case.on_grid else rng.integers(1, 60, n),
        model=rng.integers(0, 1 if case.on_grid else len(MODELS), n),
        tenant=rng.integers(0, N_TENANTS, n),
        priority=rng.integers(0, 3, n),
        deadline_ms=rng.integers(100_000, 900_000, n) if case.deadlines else np.zeros(n, np.int64),
        factor=np.ones(n) if case.on_grid else rng.uniform(0.5, 1.5, n),
    )


class Given(ServiceEstimates):
    """ServiceEstimates that nothing changes. On the grid, all types take whole halves of a second."""

    def __init__(self, on_grid: bool) -> None:
        super().__init__()
        self._on_grid = on_grid

    def of(self, key: ClassKey, type_name: str) -> tuple[float, float]:
        if self._on_grid:
            return 0.0, 0.5
        k = MODELS.index(key[0])
        return 0.1 * (k + 1) / SPEEDS[type_name], 0.3 * (1.0 + 0.5 * k) / SPEEDS[type_name]

    def observe(self, key: ClassKey, type_name: str, units: float, seconds: float) -> NewEstimate:
        return NewEstimate(type_name, *self.of(key, type_name))


class Witness:
    """An observer: where and when requests started, how they ended."""

    def __init__(self, n: int) -> None:
        self.node_idx = np.full(n, -1)
        self.start_s, self.end_s = np.full(n, np.nan), np.full(n, np.nan)
        self.units = np.full(n, np.nan)
        self.outcome: dict[int, Outcome | None] = {}
        self.left, self.taken_back = n, 0
        self.all_over = asyncio.Event()

    def arrived(self, exchange: Exchange) -> None:
        pass

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        i = int(exchange.id)
        assert all(one.cause is Cause.PREEMPTED for one in exchange.attempts[:-1]), "nothing is retried"
        self.taken_back += len(exchange.attempts) > 1
        self.node_idx[i], self.start_s[i] = attempt.node.idx, attempt.begun_s

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        raise AssertionError(attempt.cause)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            i = int(exchange.id)
            self.outcome[i], self.units[i] = exchange.outcome, exchange.units
            if exchange.outcome is Outcome.DONE:
                self.end_s[i] = exchange.attempts[-1].ended_s
        self.left -= len(exchanges)
        if self.left == 0:
            self.all_over.set()


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 4\r\n\r\nRIFF"


def backend(
    loop: VirtualLoop, t: Trace, estimates: ServiceEstimates, type_name: str
) -> Callable[[Wire, bytes], None]:
    """Serves each request for as long as the trace says."""

    def received(wire: Wire, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        found = re.search(rb"x-request-id: (\d+)", head)
        assert found is not None
        i, said = int(found[1]), orjson.loads(body)
        fixed_s, unit_s = estimates.of((said["model"], Kind.SPEECH), type_name)
        service_s = (fixed_s + unit_s * units_of(t, i)) * float(t.factor[i])
        loop.call_ranked(loop.time() + service_s, Rank.COMPLETION, i, wire.answer, ANSWER)

    return received


def units_of(t: Trace, i: int) -> float:
    """Seconds of speech, as the gateway estimates them."""
    return int(t.chars[i]) / 4.0 * 4.0 / 15.0


def request_bytes(t: Trace, i: int) -> bytes:
    body = orjson.dumps({"model": MODELS[t.model[i]], "input": "x" * int(t.chars[i]), "voice": "v"})
    deadline = b"x-trimtab-deadline-ms: %d\r\n" % t.deadline_ms[i] if t.deadline_ms[i] else b""
    return (
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %d\r\nx-request-id: %d\r\n"
        b"x-trimtab-session: s%d\r\nx-trimtab-priority: %d\r\n%bcontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (t.tenant[i], i, i, t.priority[i], deadline, len(body), body)
    )


@dataclass(frozen=True)
class Lived:
    """What the gateway did, and what a simulation of the same needs."""

    witness: Witness
    cluster: Cluster
    options: Options
    class_idx: np.ndarray
    failures: int


async def live(case: Case, t: Trace, choice: PolicyChoice, mode: str) -> Lived:
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    fleet, estimates, witness = Fleet(loop), Given(case.on_grid), Witness(case.n)
    for k, (type_name, slots) in enumerate(NODES):
        loop.peers["memory", k + 1] = backend(loop, t, estimates, type_name)
        spec = NodeSpec(
            f"n{k}", f"http://memory:{k + 1}", MODELS, slots, type_name=type_name, weight=WEIGHTS[type_name]
        )
        fleet.add(spec)
    rules = DispatchRules(
        choice,
        held_max=case.held_max,
        max_wait_s=case.max_wait_s,
        reserve_frac=0.0,
        prompt_weight=1.0,
        output_weight=OUTPUT_WEIGHT,
        seed=3,
        queues=case.queues,
    )
    dispatcher = PolicyDispatcher(
        loop, fleet, rules, estimates=estimates, tenants=N_TENANTS, inline_plans=True, mode=mode
    )
    await dispatcher.open()
    keys = [sha256(b"%d" % k).digest() for k in range(N_TENANTS)]
    tenants = {keys[k]: Tenant(str(k), k, may_set_priority=True) for k in range(N_TENANTS)}
    front = Admission(
        Endpoints(), tenants.get, known=dispatcher.registry.known, ready=dispatcher.registry.ready
    )
    settings = Settings(max_retries=0, retry_budget_frac=0.0)
    plane = DataPlane(make_context(loop, settings, front, dispatcher, (witness,), cast(Any, None)))

    def arrive(i: int) -> None:
        connection = ClientConnection(plane.context)
        connection.connection_made(Wire(loop, connection, lambda wire, data: None))
        connection.data_received(request_bytes(t, i))

    for i in range(case.n):
        loop.call_ranked(float(t.arrival_s[i]), Rank.ARRIVAL, i, arrive, i)
    await witness.all_over.wait()
    pool = dispatcher.pools[choice.spec]
    cluster = dispatcher.registry.cluster({})
    class_idx = np.array([dispatcher.registry.class_keys.index((MODELS[m], Kind.SPEECH)) for m in t.model])
    lived = Lived(witness, cluster, pool.options, class_idx, pool.policy_failures)
    await plane.close()
    dispatcher.close()
    fleet.close()
    return lived


def simulated(case: Case, t: Trace, lived: Lived, policy: Policy, order: Policy, mode: str) -> Any:
    """The same traffic in the simulator; its REQUEST rows."""
    n, cluster = case.n, lived.cluster
    work, truth = new_work(n), np.zeros(n, TRUTH)
    position = {name: k for k, name in enumerate(cluster.item_names)}
    deadline_s = np.where(t.deadline_ms > 0, t.arrival_s + t.deadline_ms / 1e3, NEVER_S)
    work["serial"] = np.arange(n)
    work["arrival_s"] = work["run_arrival_s"] = t.arrival_s
    work["deadline_s"] = np.minimum(deadline_s, t.arrival_s + case.max_wait_s)
    work["units"] = truth["units"] = [units_of(t, i) for i in range(n)]
    work["cost"] = t.chars / 4.0 + OUTPUT_WEIGHT * work["units"]  # speech: its work counts as output
    work["class_idx"] = lived.class_idx
    work["key"] = [crc32(b"s%d" % i) for i in range(n)]
    work["tenant_idx"], work["priority"] = t.tenant, t.priority
    work["model_idx"], work["adapter_idx"] = [position[MODELS[m]] for m in t.model], -1
    work["estimate_s"] = work["rank_s"] = cluster.best_estimate_s(work["class_idx"], work["units"])
    truth["factor"] = t.factor
    requests, options = Requests(work, truth, tuple(map(str, range(N_TENANTS)))), lived.options
    if options.queues is not None:
        tree = options.queues.tree
        leaf_row = tree.shape.leaf_row[tree.leaf_of(requests.tenant_names)]
        options = replace(options, queues=replace(options.queues, leaf_row=leaf_row))
    return run(cluster, requests, options, Decider(policy, order), seed=3, mode=mode).state.requests


def assert_parity(
    case: Case, policy: Policy, order: Policy, mode: str = "interpreted"
) -> tuple[Witness, np.ndarray]:
    t = trace(case)
    lived = run_virtual(live(case, t, PolicyChoice("one", policy, order), mode))
    rows = simulated(case, t, lived, policy, order, mode)
    witness, served = lived.witness, rows["status"] == Status.FINISHED
    assert lived.failures == 0
    np.testing.assert_array_equal(witness.units[served], [units_of(t, i) for i in np.flatnonzero(served)])
    np.testing.assert_array_equal(witness.node_idx, np.where(served, rows["node_idx"], -1))
    np.testing.assert_array_equal(witness.start_s[served], rows["start_s"][served])
    np.testing.assert_array_equal(witness.end_s[served], rows["finish_s"][served])
    for i in np.flatnonzero(~served):
        assert witness.outcome[int(i)] is Outcome.REFUSED
    return witness, rows


# A plan that is due at the very time of an arrival may be made before or after it: so not at round times
OFF_ROUND = {name: f"{name}(plan_period_s=0.2371)" for name in ("hungarian", *NETWORKS)}


@in_turn([*names("dispatch"), "least-expected-wait+edf", "random+sjf", "round-robin+vtc"], CASES)
def test_the_gateway_decides_as_the_simulator(spec: str, case: str) -> None:
    assert_parity(CASES[case], *decider_with_weights(find(OFF_ROUND.get(spec, spec))))


@pytest.mark.parametrize("order", names("order"))
def test_every_order_serves_alike(order: str) -> None:
    assert_parity(CASES["full"], *find(f"least-connections+{order}"))


@in_turn([f"least-connections+{order}" for order in ("fcfs", "edf", "vtc", "drf", "hdrf")], QUEUED)
def test_limits_guarantees_and_preemption_are_alike(spec: str, case: str) -> None:
    witness, _ = assert_parity(QUEUED[case], *find(spec))
    if case == "queues":
        assert witness.taken_back > 0


@pytest.mark.parametrize("case", CASES)
def test_plans_take_force_alike(case: str) -> None:
    steering = Steering(plan_period_s=0.7071)
    assert_parity(CASES[case], steering, steering)


@pytest.mark.parametrize("case", CASES)
def test_a_policy_that_chooses_decides_as_the_simulator_and_as_its_compiled_twin(case: str) -> None:
    """`least-expected-completion` as `choose`, with NumPy, and as the catalogue's kernel."""
    policy = PlainCompletion()
    chosen, _ = assert_parity(CASES[case], policy, policy)
    twin, _ = assert_parity(CASES[case], *find("least-expected-completion"))
    assert len(np.unique(chosen.node_idx[chosen.node_idx >= 0])) > 1
    np.testing.assert_array_equal(chosen.node_idx, twin.node_idx)
    np.testing.assert_array_equal(chosen.start_s, twin.start_s)


def test_compiled_decides_alike() -> None:
    assert_parity(CASES["busy"], *find("least-expected-wait"), mode="compiled")


def test_the_cases_do_what_they_are_called() -> None:
    _, full = assert_parity(CASES["full"], *find("least-connections"))
    ends = np.bincount(full["status"], minlength=10)
    assert min(ends[Status.REJECTED], ends[Status.CANCELLED], ends[Status.FINISHED]) > 5
    _, busy = assert_parity(CASES["busy"], *find("least-connections"))
    assert (busy["status"] == Status.FINISHED).all()
    assert (busy["start_s"] > trace(CASES["busy"]).arrival_s).sum() > 50
    _, equal = assert_parity(CASES["equal times"], *find("least-connections"))
    assert len(np.unique(equal["finish_s"])) < len(equal) / 3
