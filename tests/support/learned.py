"""Weights drawn by chance, for policies that take learned ones: nothing is trained in tests of hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.compiled.dense import n_weights
from trimtab.domain.artifact import Artifact
from trimtab.domain.parameters import kinds_of
from trimtab.domain.policy import Decider, Policy
from trimtab.policies.shared.features import FEATURES, N_FEATURES, OF_GROUP, OF_NODE
from trimtab.policies.shared.learned_score import weights_artifact

HIDDEN = 8
RANGES = np.array([[feature.least, feature.most] for feature in FEATURES])


def drawn_weights(*, by_group: bool = False, seed: int = 0, ranges: np.ndarray = RANGES) -> Artifact:
    """Normal weights; `by_group`: none of them reads what nodes of a group differ in."""
    vector = np.random.default_rng(seed).normal(0.0, 0.4, n_weights(N_FEATURES, HIDDEN))
    if by_group:
        hidden, skip = vector[: HIDDEN * N_FEATURES].reshape(HIDDEN, -1), vector[-N_FEATURES:]
        hidden[:, OF_GROUP : OF_GROUP + OF_NODE] = skip[OF_GROUP : OF_GROUP + OF_NODE] = 0.0
    return weights_artifact("drawn", vector, ranges, {"method": "drawn"})


def with_weights(policy: Policy) -> Policy:
    """The policy, with weights if it takes any."""
    takes = [name for name, kind in kinds_of(type(policy)).items() if kind is Artifact]
    return replace(policy, **dict.fromkeys(takes, drawn_weights())) if takes else policy  # type: ignore[type-var]


def decider_with_weights(decider: Decider) -> Decider:
    """The policies of a decider, with weights where they take any."""
    dispatch = with_weights(decider.dispatch)
    return Decider.of(dispatch, None if decider.has_own_order else with_weights(decider.order))
