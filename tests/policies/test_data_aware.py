"""Locality and prefix affinity: decisions worked out by hand, and the hot prompt that must not spiral."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, count
from support.dispatch_by_hand import Desk
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Prefixes, Requests
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find

TOKEN_UNITS = 0.01


def policy(spec: str) -> Policy:
    return find(spec)[0]


def prompted(c: Cluster) -> Cluster:
    return replace(c, prompt_token_units=np.full(len(c.class_names), TOKEN_UNITS))


# --- prefix affinity


def test_prefix_affinity_takes_what_is_cached_off_the_completion() -> None:
    desk = Desk(prompted(cluster(3)), policy("prefix-affinity(weight=1)"))
    desk.work["units"] = 10.0
    desk.state.prefix_tokens[:] = [0, 400, 100]
    assert desk.decide() == [1, 2, 0]  # 10 − 4, 10 − 1, 10
    desk.set(1, in_flight=1, running=1, backlog_s=3.5)
    assert desk.decide() == [2, 1, 0]  # 9, 3.5 + 6, 10
    desk.set(1, backlog_s=2.5)
    assert desk.decide() == [1, 2, 0]  # 8.5, 9, 10


def test_prefix_affinity_counts_savings_more_than_once_up_to_its_escape() -> None:
    desk = Desk(prompted(cluster(2)), policy("prefix-affinity(weight=3,escape=0.5)"))
    desk.work["units"] = 10.0
    desk.state.prefix_tokens[:] = [0, 200]
    desk.set(1, in_flight=1, running=1, backlog_s=4.9)
    assert desk.decide() == [1, 0]  # 4.9 + 10 − 3 · 2 < 10
    desk.set(1, backlog_s=5.1)
    assert desk.decide() == [0, 1]  # above half a service beyond the least wait: 5.1 + 10 − 2 > 10


def test_a_cached_prompt_saves_no_more_than_the_work() -> None:
    desk = Desk(prompted(cluster(2)), policy("prefix-affinity"))
    desk.work["units"] = 1.0
    desk.state.prefix_tokens[:] = [1e9, 0.0]
    desk.set(0, in_flight=1, running=1, backlog_s=2.5)
    assert desk.decide() == [1, 0]


def test_without_prompts_prefix_affinity_is_least_expected_completion() -> None:
    desk = Desk(cluster(3, types=3, speeds=[1, 2, 4]), policy("prefix-affinity"))
    desk.state.prefix_tokens[:] = [900, 0, 0]  # no class has work units of a prompt token
    assert desk.decide() == [2, 1, 0]


def _one_hot_prompt(n: int = 600) -> tuple[Cluster, Requests]:
    """Every request begins with the same 10 blocks, which make half of its work; load .8 without any hit."""
    c = prompted(cluster(4))
    r = asked(c, np.arange(n) * (2.0 / 4 / 0.8), 2.0)
    blocks = np.tile(np.arange(10, dtype=np.int32), n)
    return c, replace(r, prefixes=Prefixes(blocks, np.arange(n + 1) * 10, np.full(n, 100.0), 10.0))


def _hot(spec: str) -> Driver:
    c, r = _one_hot_prompt()
    return run(c, r, Options(prefix_blocks=20), Decider.of(policy(spec)), mode="interpreted")


def test_without_escape_a_hot_prompt_drowns_its_node_and_with_it_the_queue_stays_short() -> None:
    spiral, escaped = _hot("prefix-affinity(weight=1e9,escape=1e9)"), _hot("prefix-affinity")
    rows = spiral.state.requests
    assert set(rows["node_idx"].tolist()) == {0}  # one node, at 1.6 requests a second of which it serves one
    waits_s = (rows["start_s"] - spiral.state.work["arrival_s"])[[149, 299, 449, 599]]
    assert np.diff(waits_s) == pytest.approx(np.full(3, 150 * (1.0 - 1 / 1.6)), rel=1e-6)  # grows for ever
    rows = escaped.state.requests
    assert set(rows["node_idx"].tolist()) == {0, 1}  # as many as it takes: each serves one a second
    assert (rows["start_s"] - escaped.state.work["arrival_s"]).max() <= 2.0 + 1e-9
    hit_frac = count(escaped, "cached_tokens") / count(escaped, "prompt_tokens")
    assert hit_frac >= 1.0 - 2 / 600  # each node computed the prompt once


# --- locality


def near_and_far() -> Desk:
    """Node 0 holds the model, which takes 8 s to load elsewhere; the work itself takes 4 s."""
    desk = Desk(cluster(3, models=1, load_s=8.0), policy("locality"))
    desk.work["units"], desk.work["model_idx"], desk.work["arrival_s"] = 4.0, 0, 0.0
    desk.state.resident[:, 0] = [1, 0, 0]
    return desk


def test_locality_goes_where_the_model_is() -> None:
    assert near_and_far().decide() == [0, 1, 2]


def test_locality_waits_a_quarter_of_what_it_gains() -> None:
    desk = near_and_far()
    desk.set(0, in_flight=1, running=1, backlog_s=1.9)
    assert desk.decide() == [0, 1, 2]  # 1.9 s for 8
    desk.set(0, backlog_s=2.1)
    assert desk.decide() == [1, 2]
    desk.set(0, backlog_s=1.9)
    desk.work["arrival_s"] = -0.2
    assert desk.decide() == [1, 2]  # it has waited .2 s already


def test_locality_holds_one_request_for_a_full_node() -> None:
    desk = near_and_far()
    desk.set(0, in_flight=1, running=1, backlog_s=8.1, room=0)
    assert desk.decide() == [1, 2]
    desk.set(0, in_flight=1, running=1, backlog_s=1.0)
    assert desk.decide() == []
    assert desk.decide() == []  # offered again: the node was kept for it
    desk.work["serial"] = 7
    assert desk.decide() == [1, 2]  # for another it is not
    desk.at(1.5)
    desk.set(0, anchor_s=1.5)  # reported anew: the first did not come in time
    desk.work["arrival_s"] = 1.5
    assert desk.decide() == []


def test_locality_holds_nothing_where_no_node_is_free() -> None:
    desk = near_and_far()
    for j, backlog_s in enumerate([9.0, 0.5, 3.0]):
        desk.set(j, in_flight=1, running=1, backlog_s=backlog_s)
    assert desk.decide() == [1, 0, 2]  # 12.5, 13, 15
    desk.set(0, room=0)
    assert desk.decide() == [1, 2]


def test_locality_counts_the_round_trip() -> None:
    desk = Desk(cluster(4, zones=2, rtt_s=3.0), policy("locality"))
    desk.work["zone_idx"] = 1
    assert desk.decide() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    "spec",
    [
        "prefix-affinity(weight=0.5)",
        "prefix-affinity(escape=-1)",
        "locality(patience=-1)",
        "locality(hold=-1)",
    ],
)
def test_parameters_that_cannot_be_are_named(spec: str) -> None:
    with pytest.raises(UsageError, match=r"prefix-affinity\.(weight|escape)|locality"):
        find(spec)
