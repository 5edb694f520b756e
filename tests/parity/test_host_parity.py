"""The simulator and the live host on a virtual clock: the same run, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster, requests, with_resources
from support.by_hand import background, fault_table
from support.choosing_policies import MaskedEmptiest, PlainCompletion, PlainEmptiest, PlainRandom
from support.conformance_cases import in_turn
from support.learned import decider_with_weights
from support.planning_policies import Gate, Steering
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnRefusal, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests, Status
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.live.clock import VirtualClock
from trimtab.live.runner import run_live
from trimtab.policies.catalogue import find, names

# What a host and a simulator count differently: void completions, and what is shown how far ahead.
HOSTS_OWN = {"work", "started", "events", "steps"}

RICH = cluster(
    6, types=2, slots=2, classes=3, models=3, adapters=2, zones=2, queue_max=2, load_s=0.3, nic_gib_per_s=1.0
)
CROWDED = with_resources(RICH)
CHOOSING = (PlainEmptiest(), MaskedEmptiest(), PlainCompletion(), PlainRandom())
PLAIN = cluster(4, types=2, slots=[1, 2, 3, 1])
CASES: dict[str, tuple[Cluster, Options]] = {
    "plain": (PLAIN, Options()),
    "residency, transfers, full nodes": (RICH, Options()),
    "resources": (CROWDED, Options()),
    "held, lookahead": (RICH, Options(held_max=4, lookahead=3)),
    "rejected when refused": (
        RICH,
        Options(on_refusal=OnRefusal.REJECT, telemetry_period_s=2.0, dispatchers=3),
    ),
    "waiting cancelled": (RICH, Options(cancel=Cancel.WAITING, dispatchers=2, held_max=9)),
    "running cancelled": (RICH, Options(cancel=Cancel.ALWAYS)),
    "stale views": (CROWDED, Options(telemetry_period_s=0.5, telemetry_delay_s=0.2, dispatchers=3)),
    "horizon": (RICH, Options(horizon_s=9.0)),
    "background work, errors of reports": (
        CROWDED,
        Options(
            telemetry_period_s=0.5,
            faults=fault_table(background(0, 1.0, 6.0, 1.5), background(3, 2.0, np.inf, 1.0)),
            report_noise_frac=np.array([0.2, 0.1]),
        ),
    ),
}


def work_for(c: Cluster, n: int = 200) -> Requests:
    return requests(
        c, n, load=1.1, seed=7, deadline_s=6.0, payload_gib=0.05, noise=True, priorities=3, tenants=2
    )


def both(
    c: Cluster, r: Requests, options: Options, policy: Policy, order: Policy | None = None, mode: str = "auto"
) -> tuple[Driver, Driver]:
    """The same run simulated and live."""
    simulated = run(c, r, options, Decider.of(policy, order), seed=3, mode=mode)
    return simulated, run_live(
        c, r, options, Decider.of(policy, order), seed=3, clock=VirtualClock(), mode=mode
    )


def assert_same(simulated: Driver, live: Driver) -> None:
    for name in ("requests", "nodes", "hidden", "resident", "items", "links", "used", "seen"):
        assert_same_records(getattr(simulated.state, name), getattr(live.state, name))
    for a, b in zip(simulated.state.memories, live.state.memories, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(simulated.state.requests["attempt"], live.state.requests["attempt"])
    for name in set(simulated.state.counts.dtype.names or ()) - HOSTS_OWN - {"in_system_s"}:
        assert simulated.state.counts[name][0] == live.state.counts[name][0], name
    # an integral over time, which the live host sums in smaller steps
    in_system_s = [float(host.state.counts["in_system_s"][0]) for host in (simulated, live)]
    assert in_system_s[0] == pytest.approx(in_system_s[1], rel=1e-12)


def assert_same_records(a: np.ndarray, b: np.ndarray) -> None:
    for name in a.dtype.names or ():
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    if a.dtype.names is None:
        np.testing.assert_array_equal(a, b)


@in_turn(names("dispatch"), CASES, each=3)
def test_every_policy_decides_alike_in_both_hosts(spec: str, case: str) -> None:
    c, options = CASES[case]
    assert_same(*both(c, work_for(c), options, *decider_with_weights(find(spec)), mode="interpreted"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", CHOOSING, ids=lambda policy: type(policy).__name__)
def test_a_policy_that_chooses_decides_alike_in_both_hosts(policy: Policy, case: str) -> None:
    c, options = CASES[case]
    assert_same(*both(c, work_for(c), options, policy, mode="interpreted"))


def test_choose_decides_live_as_its_compiled_twin_does_when_simulated() -> None:
    """`least-expected-completion` as `choose`, with NumPy, and as the catalogue's kernel."""
    c, options = CASES["resources"]
    twin = run(c, work_for(c), options, find("least-expected-completion"), seed=3, mode="interpreted")
    live = run_live(c, work_for(c), options, Decider.of(PlainCompletion()), seed=3, clock=VirtualClock())
    assert len(np.unique(live.state.requests["node_idx"])) == c.n_nodes
    assert_same_records(twin.state.requests, live.state.requests)


@pytest.mark.parametrize("name", names("order"))
def test_every_order_serves_alike_in_both_hosts(name: str) -> None:
    options = Options(cancel=Cancel.WAITING, lookahead=2)
    assert_same(
        *both(RICH, work_for(RICH), options, *find(f"least-expected-wait+{name}"), mode="interpreted")
    )


def test_the_cases_do_what_they_are_called() -> None:
    def ends(case: str) -> np.ndarray:
        c, options = CASES[case]
        live = run_live(c, work_for(c), options, find("random"), clock=VirtualClock())
        return np.bincount(live.state.requests["status"], minlength=10)

    assert ends("residency, transfers, full nodes")[Status.FINISHED] == 200
    assert ends("held, lookahead")[Status.REJECTED] > 0
    assert ends("rejected when refused")[Status.REJECTED] > 0
    assert ends("waiting cancelled")[Status.CANCELLED] > 0
    assert ends("running cancelled")[Status.CANCELLED] > ends("waiting cancelled")[Status.CANCELLED]
    assert ends("horizon")[: Status.FINISHED].sum() > 0


def test_compiled_decides_alike_in_both_hosts() -> None:
    options = Options(cancel=Cancel.ALWAYS, held_max=9)
    assert_same(*both(RICH, work_for(RICH), options, *find("power-of-d"), mode="compiled"))


@pytest.mark.parametrize("latency_s", [0.0, 0.4, 2.5])
@pytest.mark.parametrize("case", ["plain", "held, lookahead", "running cancelled"])
def test_plans_take_force_alike_in_both_hosts(case: str, latency_s: float) -> None:
    c, options = CASES[case]
    simulated, live = both(c, work_for(c), replace(options, plan_latency_s=latency_s), Steering())
    assert_same(simulated, live)
    assert simulated.planning == live.planning
    assert live.planning.made > 5


@pytest.mark.parametrize(("period_s", "latency_s"), [(20.0, 25.0), (0.75, 0.0), (0.75, 2.0)])
def test_a_plan_frees_what_is_held_alike_in_both_hosts(period_s: float, latency_s: float) -> None:
    r = requests(PLAIN, 4, load=2.0)
    options = Options(plan_latency_s=latency_s)
    simulated, live = both(PLAIN, r, options, Gate(plan_period_s=period_s, opens_s=0.5))
    assert_same(simulated, live)
    assert (live.state.requests["status"] == Status.FINISHED).all()


class HoldAll(Policy):
    """Never sends anything anywhere."""

    @staticmethod
    def dispatch(
        view: object, plan: object, work: object, memory: object, draws: object, ranking: object
    ) -> int:
        return 0


@pytest.mark.parametrize("options", [Options(), Options(telemetry_period_s=1.0), Options(held_max=3)])
def test_what_is_held_for_ever_ends_both_hosts(options: Options) -> None:
    simulated, live = both(PLAIN, work_for(PLAIN, 10), options, HoldAll())
    assert_same(simulated, live)


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 4), min_size=1, max_size=25),
    units=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=25, max_size=25),
    cancel=st.sampled_from(Cancel),
    stale=st.booleans(),
    latency_s=st.sampled_from([0.0, 0.5, 1.0]),
    rtt_s=st.sampled_from([0.0, 0.5]),
)
def test_equal_times_and_no_service_time_at_all_change_nothing(
    arrivals: list[int], units: list[float], cancel: Cancel, stale: bool, latency_s: float, rtt_s: float
) -> None:
    """Everything at multiples of half a second, so that nearly every event has another at its time."""
    c = cluster(3, slots=[1, 2, 1], queue_max=1, zones=2, rtt_s=rtt_s, speeds=[1.0])
    r = requests(c, len(arrivals))
    r.work["arrival_s"] = r.work["run_arrival_s"] = np.sort(arrivals)
    r.work["deadline_s"] = r.work["arrival_s"] + 1.5
    r.work["units"] = r.truth["units"] = units[: len(arrivals)]
    r.work["estimate_s"] = r.work["rank_s"] = c.best_estimate_s(r.work["class_idx"], r.work["units"])
    options = Options(
        held_max=5,
        lookahead=2,
        cancel=cancel,
        telemetry_period_s=0.5 if stale else 0.0,
        telemetry_delay_s=0.5,
        plan_latency_s=latency_s,
    )
    assert_same(*both(c, r, options, Steering(plan_period_s=0.5), mode="interpreted"))
