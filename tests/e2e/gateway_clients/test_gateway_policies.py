"""Policies of the catalogue and one's own, by model and by route, in a running gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.backends import Options, launched
from support.served import Served, chat, config_of, node_of, served

CATALOGUE = (
    "bounded-hash+fcfs",
    "least-connections+priority-ageing",
    "least-expected-completion+sjf",
    "least-expected-wait+edf",
    "power-of-d+vtc",
    "random",
    "round-robin",
    "weighted-round-robin",
)
OWN = '''
import multiprocessing
from dataclasses import dataclass

import numpy as np

import trimtab as tt
from trimtab.domain.view import empty_plan


class Last(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = view.context.n_nodes - 1
        return 1


class First(tt.Policy):
    @staticmethod
    @tt.kernel
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 0
        return 1


@dataclass(frozen=True)
class Gate(tt.Policy):
    """Holds everything until a plan, made in another process, says which node."""

    plan_period_s: float = 0.25

    def plan(self, view, history, waiting, rollout):
        if multiprocessing.parent_process() is None or not len(waiting):
            return None
        return empty_plan()._replace(params=np.array([1.0]))

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if not len(plan.params):
            return 0
        ranking[0] = int(plan.params[0])
        return 1


class Broken(tt.Policy):
    """Raises about every second request."""

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if work.serial % 2:
            raise ArithmeticError("no answer")
        ranking[0] = 2
        return 1
'''
OWN_NAMES = ("Broken", "First", "Gate", "Last")


def model_of(spec: str) -> str:
    return "m-" + spec.lower().replace("+", "-")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "own.py").write_text(OWN)
    models = [*map(model_of, CATALOGUE), *map(model_of, OWN_NAMES), "m-routed", "m-other"]
    names = ",".join(models)
    with launched(*(Options(name=f"n{k}", models=names, output_s=0.001, slots=8) for k in range(3))) as nodes:
        chosen = {model_of(spec): spec for spec in CATALOGUE}
        own = {model_of(name): f"own.py:{name}" for name in OWN_NAMES}
        config = config_of(
            *nodes,
            nodes=[node_of(node, weight=1 + k) for k, node in enumerate(nodes)],
            policy={"default": "round-robin", "models": {**chosen, **own}},
            routes={"to-first": {"targets": "m-routed", "policy": "own.py:First"}},
        )
        with served(folder, config) as gateway:
            yield gateway


def receipts_of(gateway: Served, model: str, count: int) -> list[dict[str, Any]]:
    """Why requests, one after the other, went where they went."""
    answers = [gateway.call("/v1/chat/completions", chat(model)) for _ in range(count)]
    assert [answer.status for answer in answers] == [200] * count
    return [gateway.receipt(answer.headers["x-request-id"]) for answer in answers]


def nodes_of(gateway: Served, model: str, count: int = 12) -> Counter[str]:
    """Where requests went."""
    found: Counter[str] = Counter()
    for _ in range(count):
        answer = gateway.call("/v1/chat/completions", chat(model))
        assert answer.status == 200
        found[answer.headers["x-trimtab-node"]] += 1
    return found


@pytest.mark.parametrize("spec", CATALOGUE)
def test_a_policy_of_the_catalogue(gateway: Served, spec: str) -> None:
    (receipt,) = receipts_of(gateway, model_of(spec), 1)
    assert receipt["decision"]["policy"] == spec


def test_turns_and_weights(gateway: Served) -> None:
    assert nodes_of(gateway, "m-round-robin") == {"n0": 4, "n1": 4, "n2": 4}
    assert nodes_of(gateway, "m-weighted-round-robin") == {"n0": 2, "n1": 4, "n2": 6}


def test_ones_own_policies(gateway: Served) -> None:
    assert set(nodes_of(gateway, "m-first", 3)) == {"n0"}
    assert set(nodes_of(gateway, "m-last", 3)) == {"n2"}


def test_a_route_has_its_policy_and_the_model_by_itself_another(gateway: Served) -> None:
    assert set(nodes_of(gateway, "to-first", 3)) == {"n0"}
    assert set(nodes_of(gateway, "m-routed", 3)) == {"n0", "n1", "n2"}


def test_plans_come_from_another_process(gateway: Served) -> None:
    receipts = receipts_of(gateway, "m-gate", 3)
    assert [receipt["node"] for receipt in receipts] == ["n1"] * 3
    assert not any(receipt["decision"]["fallback"] for receipt in receipts)


def test_least_connections_decides_where_a_policy_raises(gateway: Served) -> None:
    before = gateway.metric("trimtab_policy_failures_total")
    receipts = receipts_of(gateway, "m-broken", 6)
    assert [receipt["decision"]["fallback"] for receipt in receipts] == [False, True] * 3
    assert [receipt["node"] for receipt in receipts[::2]] == ["n2"] * 3
    assert gateway.metric("trimtab_policy_failures_total") == before + 3
    told = [line for line in gateway.said().splitlines() if "no answer" in line]
    assert len(told) == 2  # the 1st, the 2nd
    assert all("least connections decides instead" in line for line in told)


def test_a_policy_is_changed_by_a_reload(gateway: Served) -> None:
    file = gateway.folder / "gateway.yaml"
    before = file.read_text()
    file.write_text(before.replace("default: round-robin", "default: own.py:Last"))
    assert gateway.admin("/admin/reload", method="POST").json()["changed"] == ["policy"]
    assert set(nodes_of(gateway, "m-other", 3)) == {"n2"}
    assert gateway.admin("/admin/nodes", {"name": "x", "url": "http://127.0.0.1:9"}).status == 400
    file.write_text(
        before + "registration: {allowed_cidrs: [127.0.0.0/8]}\ntelemetry: {log_requests: true}\n"
    )
    done = gateway.admin("/admin/reload", method="POST").json()
    assert done["changed"] == ["policy", "registration", "telemetry"]
    assert done["needs_restart"] == ["telemetry"]
    assert gateway.admin("/admin/nodes", {"name": "x", "url": "http://127.0.0.1:9"}).status == 201
    assert gateway.admin("/admin/nodes/x", method="DELETE").status == 202
    assert set(nodes_of(gateway, "m-other", 3)) == {"n0", "n1", "n2"}
    file.write_text(before.replace("default: round-robin", "default: rendom"))
    assert gateway.admin("/admin/reload", method="POST").status == 400
    assert set(nodes_of(gateway, "m-other", 3)) == {"n0", "n1", "n2"}
