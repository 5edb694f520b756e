"""Policies with learned weights: without any they are their rule; index and scan; bounds; refusals."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.conformance_cases import CASES
from support.dispatch_by_hand import Desk
from support.learned import HIDDEN, RANGES, drawn_weights
from trimtab.compiled.dense import forward, n_weights
from trimtab.domain.artifact import Artifact
from trimtab.domain.options import Options
from trimtab.errors import UsageError
from trimtab.policies import canonical, find
from trimtab.policies.learned.learned_dispatch import LearnedDispatch
from trimtab.policies.learned.learned_residual import LearnedResidual
from trimtab.policies.shared.features import FEATURES_VERSION, N_FEATURES
from trimtab.policies.shared.learned_score import weights_artifact

RULES = {LearnedResidual: "late-binding", LearnedDispatch: "least-expected-completion"}
each = pytest.mark.parametrize("cls", RULES)
LARGE = cluster(1_100, types=3, classes=3, models=4, adapters=2, memory_gib=14.0)


def same_rows(a: Any, b: Any) -> bool:
    return a.requests.tobytes() == b.requests.tobytes()


@each
@pytest.mark.parametrize("case", CASES)
def test_without_weights_or_with_zeros_it_is_its_rule(cls: Any, case: str) -> None:
    zeros = weights_artifact("zeros", np.zeros(n_weights(N_FEATURES, HIDDEN)), RANGES, {})
    expected = run(*CASES[case](), *find(RULES[cls]), seed=5)
    for artifact in (cls().artifact, zeros):
        assert same_rows(run(*CASES[case](), cls(artifact=artifact), seed=5), expected)
    assert not same_rows(run(*CASES[case](), cls(artifact=drawn_weights()), seed=5), expected)


@each
def test_an_index_decides_as_a_scan(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = requests(LARGE, 6_000, load=1.1, noise=True)
    policy = cls(artifact=drawn_weights(by_group=True))
    indexed = run(LARGE, work, Options(), policy, compiled=True)
    for module in ("load_aware.late_binding", "learned.learned_dispatch"):
        monkeypatch.setattr(f"trimtab.policies.{module}.is_indexable", lambda _: False)
    scanned = run(LARGE, work, Options(), policy, compiled=True)
    assert len(scanned.memories[0].ints) != len(indexed.memories[0].ints)
    assert same_rows(indexed, scanned)
    assert not same_rows(indexed, run(LARGE, work, Options(), cls(), compiled=True))


@each
def test_no_bound_and_no_range_leave_the_rule(cls: Any) -> None:
    c, r, options = CASES["plain"]()
    expected = run(c, r, options, cls())
    unseen = drawn_weights(ranges=np.tile([2.0, 3.0], (N_FEATURES, 1)))  # no feature is above 1
    assert same_rows(run(c, r, options, cls(artifact=drawn_weights(), bound=0.0)), expected)
    assert same_rows(run(c, r, options, cls(artifact=unseen)), expected)
    assert not same_rows(run(c, r, options, cls(artifact=unseen, in_range=False)), expected)


def test_a_choice_departs_from_least_completion_by_at_most_the_bound() -> None:
    """Two nodes of one request: weights of a thousand can't send it to one that takes three services more."""
    skip = np.zeros(n_weights(N_FEATURES, 0))
    skip[2] = 1e3  # `fast`: the slower, the better
    slow_first = weights_artifact("slow", skip, np.tile([-1.0, 1.0], (N_FEATURES, 1)), {})
    for fast, chosen in ((3.9, 1), (4.1, 0)):  # the slow node takes 1 s
        c = cluster(2, types=2, speeds=[fast, 1.0])
        c.unit_s[0] = [1.0 / fast, 1.0]
        desk = Desk(c, LearnedDispatch(artifact=slow_first, bound=3.0))
        desk.work["units"], desk.work["estimate_s"] = 1.0, 1.0 / fast
        assert desk.decide()[0] == chosen, fast


def test_a_network_is_what_numpy_computes() -> None:
    weights, values = np.random.default_rng(1).normal(size=n_weights(5, 3)), np.array([9.0, 1, -2, 0.5, 0, 3])
    hidden, bias, out, skip = np.split(weights, np.cumsum([15, 3, 3]))
    x = values[1:]
    total = (hidden.reshape(3, 5) * x).sum(axis=1) + bias
    expected = (out * total / (1.0 + np.abs(total))).sum() + (skip * x).sum()
    assert forward(weights, 0, values, 1, 5, 3) == pytest.approx(expected)


@each
def test_weights_that_do_not_fit_are_refused(cls: Any) -> None:
    drawn = drawn_weights()

    def changed(meta: dict[str, str] | None = None, **arrays: np.ndarray) -> Artifact:
        return Artifact("w", {**drawn.arrays, **arrays}, {**drawn.meta, **(meta or {})})

    with pytest.raises(UsageError, match=rf"trained on version 99 .*expected version {FEATURES_VERSION}"):
        cls(artifact=changed({"features_version": "99"}))
    with pytest.raises(UsageError, match=r"skip: has the wrong shape \(got \[2\]\)"):
        cls(artifact=changed(skip=np.zeros(2)))
    with pytest.raises(UsageError, match="not finite"):
        changed(out=np.full(HIDDEN, math.nan))
    with pytest.raises(UsageError, match="hidden: is missing"):
        cls(artifact=Artifact("w", {"bias": drawn.arrays["bias"]}, drawn.meta))
    with pytest.raises(UsageError, match="was trained for 'another'"):
        cls(artifact=changed({"policy": "another"}))
    assert cls(artifact=changed({"policy": cls.name})).artifact


@each
def test_a_policy_with_weights_is_named_by_their_hash_and_pickles(cls: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(drawn_weights().content())
    policy = find(f"{cls.name}(artifact={path})").dispatch
    label = canonical(policy)
    assert label == f"{cls.name}(artifact=mine@{drawn_weights().sha256[:12]})"
    path.unlink()
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    assert hash(copy) == hash(policy)
    assert canonical(copy) == label
    assert replace(policy, artifact=drawn_weights(seed=1)) != policy
