"""Weights drawn by chance, for policies that take learned ones: nothing is trained in tests of hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trimtab.compiled.dense import n_weights
from trimtab.domain.artifact import Artifact
from trimtab.domain.parameters import kinds_of
from trimtab.domain.policy import Decider, Policy
from trimtab.policies.shared.features import FEATURES, N_FEATURES, OF_GROUP, OF_NODE
from trimtab.policies.shared.learned_score import weights_artifact
from trimtab.policies.shared.plan_networks import (
    Shapes,
    network_artifact,
    pointer_shapes,
    set_shapes,
    transformer_shapes,
)

HIDDEN = 8
RANGES = np.array([[feature.least, feature.most] for feature in FEATURES])


def drawn_weights(*, by_group: bool = False, seed: int = 0, ranges: np.ndarray = RANGES) -> Artifact:
    """Normal weights; `by_group`: none of them reads what nodes of a group differ in."""
    vector = np.random.default_rng(seed).normal(0.0, 0.4, n_weights(N_FEATURES, HIDDEN))
    if by_group:
        hidden, skip = vector[: HIDDEN * N_FEATURES].reshape(HIDDEN, -1), vector[-N_FEATURES:]
        hidden[:, OF_GROUP : OF_GROUP + OF_NODE] = skip[OF_GROUP : OF_GROUP + OF_NODE] = 0.0
    return weights_artifact("drawn", vector, ranges, {"method": "drawn"})


NETWORKS: dict[str, Callable[[int], Shapes]] = {
    "learned-matching": set_shapes,
    "learned-pointer": pointer_shapes,
    "learned-transformer": transformer_shapes,
}


def drawn_network(name: str, seed: int = 0) -> Artifact:
    """Normal weights of a policy that plans by a network."""
    draw, shapes = np.random.default_rng(seed), NETWORKS[name](HIDDEN)
    return network_artifact("drawn", {key: draw.normal(0.0, 0.4, shape) for key, shape in shapes.items()}, {})


def with_weights(policy: Policy) -> Policy:
    """The policy, with weights if it takes any."""
    takes = [name for name, kind in kinds_of(type(policy)).items() if kind is Artifact]
    drawn = drawn_network(policy.name) if policy.name in NETWORKS else drawn_weights()
    return replace(policy, **dict.fromkeys(takes, drawn)) if takes else policy  # type: ignore[type-var]


def decider_with_weights(decider: Decider) -> Decider:
    """The policies of a decider, with weights where they take any."""
    dispatch = with_weights(decider.dispatch)
    return Decider.of(dispatch, None if decider.has_own_order else with_weights(decider.order))
