"""Policies whose plans a network makes: without weights Hungarian; equivariance; slots; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.learned import HIDDEN, NETWORKS, drawn_network
from trimtab.domain.artifact import Artifact
from trimtab.domain.options import Options
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.shared.plan_features import PLAN_FEATURES_VERSION, Window, window
from trimtab.policies.shared.plan_networks import (
    SetNetwork,
    first_of_slots,
    matched,
    sequence,
    set_scores,
)

each = pytest.mark.parametrize("name", NETWORKS)


def policy(name: str, **given: Any) -> Any:
    return replace(find(name).dispatch, **given)


def seen(n: int, m: int, seed: int = 0) -> Window:
    draw = np.random.default_rng(seed)
    service_s, load_s = draw.uniform(1.0, 9.0, (n, m)), draw.uniform(0.0, 4.0, (n, m))
    service_s[0, 0] = np.inf  # the first slot does not serve the first request
    item = np.arange(n) % 3 - 1
    return window(
        service_s, load_s, draw.uniform(0.0, 9.0, m), service_s.min(axis=1), np.ones(n), item, np.arange(m)
    )


def permuted(w: Window, rows: Any, columns: Any) -> Window:
    return window(
        w.service_s[rows][:, columns],
        w.load_s[rows][:, columns],
        w.free_s[columns],
        w.best_s[rows],
        w.waited_s[rows],
        w.item[rows],
        w.node[columns],
    )


@each
def test_without_weights_it_is_hungarian_and_with_them_all_is_served(name: str) -> None:
    c = cluster(4, types=2, models=3, memory_gib=14.0, load_s=0.5)
    work, options = requests(c, 80, load=1.1, noise=True), Options()
    rule = run(c, work, options, *find("hungarian"), seed=1).requests
    assert run(c, work, options, policy(name), seed=1).requests.tobytes() == rule.tobytes()
    found = run(c, work, options, policy(name, artifact=drawn_network(name)), seed=1).requests
    assert np.isfinite(found["finish_s"]).all()
    assert found.tobytes() != rule.tobytes()


def test_the_order_of_requests_and_slots_changes_nothing_for_the_set_network() -> None:
    w, draw = seen(5, 4), np.random.default_rng(2)
    rows, columns = draw.permutation(5), draw.permutation(4)
    net = policy("learned-matching", artifact=drawn_network("learned-matching")).network()
    scores, left_out = set_scores(net, w)
    moved, moved_out = set_scores(net, permuted(w, rows, columns))
    np.testing.assert_allclose(moved, scores[rows][:, columns], rtol=1e-12)
    np.testing.assert_allclose(moved_out, left_out[rows], rtol=1e-12)
    assert scores[0, 0] == -np.inf


@pytest.mark.parametrize("name", ["learned-pointer", "learned-transformer"])
def test_a_sequence_has_each_request_once_and_the_names_of_slots_mean_nothing(name: str) -> None:
    net = policy(name, artifact=drawn_network(name, seed=3)).network()
    draw = np.random.default_rng(4)
    for seed in range(5):
        w, columns = seen(6, 4, seed), draw.permutation(4)
        rows = draw.permutation(6) if name == "learned-transformer" else np.arange(6)  # which reads no order
        chosen, slots = sequence(net, permuted(w, rows, columns))
        expected = sequence(net, permuted(w, np.arange(6), np.arange(4)))
        assert (rows[chosen].tolist(), columns[slots].tolist()) == tuple(map(np.ndarray.tolist, expected))
        assert sorted(chosen.tolist()) == list(range(6))
        assert (0, 0) not in zip(*map(np.ndarray.tolist, expected), strict=True)


def test_a_request_that_no_slot_serves_ends_no_sequence() -> None:
    w = seen(3, 2)
    w.service_s[1] = np.inf
    for name in ("learned-pointer", "learned-transformer"):
        chosen, slots = sequence(
            policy(name, artifact=drawn_network(name)).network(), permuted(w, [0, 1, 2], [0, 1])
        )
        assert sorted(chosen.tolist()) == [0, 2]
        assert first_of_slots(chosen, slots, 3)[1] == -1


def test_matched_pairs_are_exclusive_and_what_is_likelier_left_out_is() -> None:
    scores = np.array([[3.0, 1.0], [2.5, 1.0], [0.0, 0.0]])  # chances of slots .84 .11, .77 .17, .33 .33
    assert matched(scores, np.zeros(3)).tolist() == [0, -1, 1]
    assert matched(scores[:2], np.zeros(2)).tolist() == [0, 1]
    assert matched(scores[:2], np.array([4.0, 0.0])).tolist() == [-1, 0]  # .26 left
    assert matched(np.full((2, 1), -np.inf), np.zeros(2)).tolist() == [-1, -1]


@each
def test_weights_that_do_not_fit_are_refused(name: str) -> None:
    drawn = drawn_network(name)
    key = next(iter(drawn.arrays))

    def changed(meta: dict[str, str] | None = None, **arrays: np.ndarray) -> Artifact:
        return Artifact("w", {**drawn.arrays, **arrays}, {**drawn.meta, **(meta or {})})

    with pytest.raises(UsageError, match=rf"version 99 of .*expected version {PLAN_FEATURES_VERSION}"):
        policy(name, artifact=changed({"plan_features_version": "99"}))
    with pytest.raises(UsageError, match="was trained for 'learned-residual'"):
        policy(name, artifact=changed({"policy": "learned-residual"}))
    with pytest.raises(UsageError, match=rf"{key}: has the wrong shape"):
        policy(name, artifact=changed(**{key: np.zeros((2, 2, 2, 2, 2))}))
    with pytest.raises(UsageError, match=r"is missing|has the wrong shape"):
        policy(name, artifact=Artifact("w", {"score": drawn.arrays["score"]}, drawn.meta))
    assert policy(name, artifact=changed({"policy": name})).network()


def test_a_set_network_is_what_numpy_computes() -> None:
    net: SetNetwork = policy("learned-matching", artifact=drawn_network("learned-matching")).network()
    from trimtab.policies.shared.plan_features import N_PLAN_FEATURES, note_pairs

    w = seen(3, 4)
    y = np.zeros((3, 4, N_PLAN_FEATURES))
    note_pairs(w, y)
    for matrices, bias in ((net.first, net.first_bias), (net.second, net.second_bias)):
        means = y, y.mean(axis=1, keepdims=True), y.mean(axis=0, keepdims=True), y.mean(axis=(0, 1))
        total = sum(part @ matrix for part, matrix in zip(means, matrices, strict=True)) + bias
        y = total / (1.0 + np.abs(total))
    scores, left_out = set_scores(net, w)
    can = np.isfinite(scores)
    np.testing.assert_allclose(scores[can], (y @ net.score)[can], rtol=1e-9)
    np.testing.assert_allclose(left_out, y.mean(axis=1) @ net.left_out + net.left_out_bias, rtol=1e-9)
    assert net.first.shape == (4, N_PLAN_FEATURES, HIDDEN)
