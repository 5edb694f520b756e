"""The same run of language models, in the simulator and through the gateway: the same views and decisions.

The simulator runs first, and each decision notes what the policy sees of the engines. Then the gateway gets
the same requests at the same times. Its nodes answer when the simulator's did, and a page of each node says
before each decision what a server's page says: requests in the batch, KV memory, and the mean time between
tokens since the page before. What waits to be read, the gateway counts itself, until tokens come: the
simulator, which knows what an iteration under way reads, shows the same here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.engines import engines_of, model_type, token_requests
from support.gateway.dispatch_bench import Asked, Bench, on_bench
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.output_estimate import FIRST_OUTPUT_TOKENS
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.driver import Driver
from trimtab.engine.state import State
from trimtab.gateway.api.units import token_units
from trimtab.gateway.decide.dispatcher import REFRESH_S
from trimtab.gateway.decide.learning import ClassKey, ServiceEstimates
from trimtab.policies import find

N, SLOTS, OUTPUT = 150, 32, int(FIRST_OUTPUT_TOKENS)
AHEAD_S = REFRESH_S + 1e-3  # a page is read so long before the decision that it is for
KINDS = [
    model_type(
        step_s=step_s,
        row_s=row_s,
        token_s=token_s,
        kv_tokens=kv_tokens,
        batch_max=SLOTS,
        token_budget=3_000 * SLOTS,
    )
    for step_s, row_s, token_s, kv_tokens in (
        (0.031, 0.0021, 0.00011, 30_000),
        (0.047, 0.0012, 0.00019, 41_000),
        (0.023, 0.0037, 0.00017, 23_000),
    )
]
NODES = [{"type_name": f"type{j}", "max_requests": SLOTS} for j in range(len(KINDS))]
SEEN = ("kv_tokens", "decoding", "step_s", "row_s", "waiting_tokens")


class Estimates(ServiceEstimates):
    """The same all the time."""

    def of(self, key: ClassKey, type_name: str) -> tuple[float, float]:
        return 0.0, 0.02 + 0.01 * int(type_name[-1])

    def observe(self, key: ClassKey, type_name: str, units: float, seconds: float) -> None:
        return None


class Noting(Policy):
    """Decides as another policy that knows no profile, and notes what it sees of engines."""

    def __init__(self, policy: Policy) -> None:
        self._policy, decide = policy, interpreted(policy.dispatch)
        self.draws, self.needs, self.degrades = policy.draws, policy.needs, policy.degrades  # type: ignore[misc]
        self.seen: list[dict[str, np.ndarray]] = []
        self.at_s: list[float] = []

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            self.at_s.append(view.context.now_s)
            self.engines["waiting_tokens"] = self.unread()
            self.seen.append(seen_of(view, view.context.now_s))
            return int(decide(view, plan, work, memory, draws, ranking))

        self.dispatch = dispatch  # type: ignore[method-assign]

    def watch(self, state: State) -> None:
        """Count what waits in this run."""
        self._state, self.engines = state, state.engine_load

    def unread(self) -> np.ndarray:
        """Prompt tokens at each node of which no answer has begun."""
        node_idx, of = self._state.requests["node_idx"], self._state.work["input_tokens"]
        is_unread = (node_idx >= 0) & np.isnan(self._state.sequences["first_token_s"])
        return np.bincount(node_idx[is_unread], of[is_unread], len(self.engines))

    def init(self, cluster: Cluster) -> Any:
        return self._policy.init(replace(cluster, engines=None))


def seen_of(view: Any, now_s: float) -> dict[str, np.ndarray]:
    """What a view shows of engines."""
    engines, nodes = view.engines, view.nodes
    found = {name: np.array(getattr(engines, name)) for name in SEEN}
    aged_s = now_s - np.array(nodes.anchor_s)
    found["kv_used"] = np.array(engines.kv_used) + np.array(engines.kv_per_s) * aged_s
    found["in_flight"] = np.array(nodes.in_flight)
    return found


class Simulated(NamedTuple):
    """A run of the simulator."""

    noted: Noting
    prompt: np.ndarray
    requests: np.ndarray
    first_token_s: np.ndarray


def simulated(bench: Bench, spec: str) -> Simulated:
    """The run in the simulator, on the cluster and with the options of the gateway."""
    asked = Asked()
    registry = bench.dispatcher.registry
    registry.estimates = Estimates()
    registry.add_class(asked)
    bench.dispatcher.rebuild()
    engines = engines_of(KINDS)
    for g, kind in enumerate(KINDS):
        engines.dense_s[g, 0] += kind["row_s"]  # an idle node tells of an iteration of one
    cluster = replace(registry.cluster({}), engines=engines)
    rng = np.random.default_rng(7)
    arrival_s = np.cumsum(AHEAD_S + rng.exponential(0.12, N)) + 2.0
    prompt = rng.integers(50, 3_000, N)
    units = np.array([token_units(float(tokens), OUTPUT) for tokens in prompt])
    items, rules = bench.pool.items["m"], bench.dispatcher.rules
    work = {"units": units, "deadline_s": arrival_s + rules.max_wait_s, "model_idx": items[0]}
    requests = token_requests(cluster, arrival_s, prompt, OUTPUT, **work)
    noted = Noting(find(spec).dispatch)
    driver = Driver(
        cluster, requests, bench.pool.options, Decider.of(noted), mode="interpreted", seed=rules.seed
    )
    state = driver.state
    noted.watch(state)
    driver.advance()
    return Simulated(noted, prompt, state.requests, state.sequences["first_token_s"])


def page_of(seen: dict[str, np.ndarray], j: int, rows_before: int) -> dict[str, float]:
    """What a server tells: the batch was half as before and half as now since the page before."""
    rows, capacity = int(seen["decoding"][j]), float(seen["kv_tokens"][j])
    mean_rows = (max(1, rows) + max(1, rows_before)) / 2
    used = seen["kv_used"][j] - rows / seen["step_s"][j] * AHEAD_S  # which grows until the decision
    token_s = KINDS[j]["step_s"] + KINDS[j]["row_s"] * mean_rows
    return {"running": rows, "kv_used_frac": used / capacity, "kv_tokens": capacity, "token_s": token_s}


async def wait_until(bench: Bench, at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - bench.dispatcher.now_s()))


@pytest.mark.parametrize("spec", ["predicted-latency", "llm-headroom(ttft_s=1,tpot_s=0.06)", "kv-cost"])
def test_the_gateway_sees_engines_as_the_simulator_and_decides_alike(spec: str) -> None:
    async def test(bench: Bench) -> None:
        made = simulated(bench, spec)
        noted = made.noted
        assert len(noted.seen) == N
        rows_before = [0] * len(KINDS)
        for rows in (0, 9, 0):  # each served others before
            busy = {"decoding": rows, "kv_tokens": 1, "kv_used": 0, "step_s": 1.0}
            for j in range(len(KINDS)):
                seen = {name: np.full(3, value) for name, value in busy.items()}
                await report(bench, j, page_of(seen, j, rows_before[j]))
                rows_before[j] = rows
        await wait_until(bench, noted.at_s[0] - 2 * AHEAD_S)
        events = [(at_s - AHEAD_S, "page", i) for i, at_s in enumerate(noted.at_s)]
        events += [(at_s, "arrival", i) for i, at_s in enumerate(noted.at_s)]
        events += [(at_s, "token", i) for i, at_s in enumerate(made.first_token_s)]
        events += [(at_s, "end", i) for i, at_s in enumerate(made.requests["finish_s"])]
        asked: dict[int, Asked] = {}
        for at_s, what, i in sorted(events):
            await wait_until(bench, at_s)
            if what == "page":
                for j in range(len(KINDS)):
                    await report(bench, j, page_of(noted.seen[i], j, rows_before[j]))
                    rows_before[j] = int(noted.seen[i]["decoding"][j])
            elif what == "arrival":
                bench.dispatcher.catch_up()
                shown = seen_of(bench.view(), at_s)
                for name, expected in noted.seen[i].items():
                    np.testing.assert_allclose(shown[name], expected, rtol=1e-9, atol=1e-6, err_msg=name)
                asked[i] = one = Asked()
                one.facts.prompt_tokens, one.facts.max_tokens = float(made.prompt[i]), 0.0
                bench.submit(one)
                assert one.node == f"n{made.requests['node_idx'][i]}", i
            elif what == "token":
                bench.dispatcher.progress(asked[i], 1)
            else:
                bench.done(asked[i])
        assert np.bincount(made.requests["node_idx"]).min() > N / 10
        assert max(seen["in_flight"].max() for seen in noted.seen) > 5
        assert sum(seen["waiting_tokens"].any() for seen in noted.seen) > N / 10

    on_bench(test, spec, *NODES)


async def report(bench: Bench, j: int, values: dict[str, float]) -> None:
    node = bench.fleet.nodes[j]
    node.reported |= values
    bench.fleet.reports(node, "backend", values)
