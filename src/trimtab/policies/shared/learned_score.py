"""The correction that learned weights make to a score, within bounds.

In `memory.params` from `at` on: hidden units (-1 = no weights), the largest correction, the weights of
`dense.forward`, then for each feature the least and the most of its values in training. `memory.floats` ends
with room for a number for each type of node, and the features of one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from trimtab.compiled.dense import forward, n_weights
from trimtab.compiled.kernel import helper
from trimtab.domain.artifact import NO_ARTIFACT, Artifact, Floats
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import Range
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, View
from trimtab.errors import UsageError
from trimtab.policies.shared.features import (
    FEATURES,
    FEATURES_VERSION,
    N_FEATURES,
    OF_GROUP,
    OF_NODE,
    features_memory,
    note_request,
)
from trimtab.policies.shared.node_words import any_item, n_free, n_groups, type_of_group

VERSION_KEY: Final = "features_version"  # of an artifact's metadata
_HEAD: Final = 2
ARRAYS: Final = ("hidden", "bias", "out", "skip", "ranges")  # of an artifact


def check_weights(artifact: Artifact, name: str, trained_for: str) -> None:
    """Raise UsageError for weights of another version or policy, or that do not fit each other."""
    if artifact:
        found = artifact.meta.get(VERSION_KEY, "none")
        if found != str(FEATURES_VERSION):
            problem = f"was trained on version {found} of the features"
            expected = f"version {FEATURES_VERSION}: train it anew with `trimtab learn train`"
            raise UsageError(problem, file=artifact.path or artifact.name, field=name, expected=expected)
        weights_of(artifact)
        if (told := artifact.meta.get("policy", trained_for)) != trained_for:
            problem, expected = f"was trained for {told!r}", f"weights of {trained_for}"
            raise UsageError(problem, file=artifact.path or artifact.name, field=name, expected=expected)


def weights_of(artifact: Artifact) -> dict[str, Floats]:
    """The arrays of `ARRAYS`. Raises UsageError for a missing one, or a wrong shape."""
    units = len(artifact.arrays.get("bias", ()))
    shapes = ((units, N_FEATURES), (units,), (units,), (N_FEATURES,), (N_FEATURES, 2))
    return {key: artifact.floats(key, shape) for key, shape in zip(ARRAYS, shapes, strict=True)}


def weights_artifact(name: str, vector: Floats, ranges: Floats, meta: Mapping[str, str]) -> Artifact:
    """An artifact of a vector of weights as `dense.forward` reads them, and the ranges [features, 2]."""
    units = hidden_of(len(vector))
    ends = np.cumsum([units * N_FEATURES, units, units])
    hidden, bias, out, skip = np.split(vector, ends)
    arrays = (hidden.reshape(units, N_FEATURES), bias, out, skip, ranges)
    made = dict(zip(ARRAYS, arrays, strict=True))
    return Artifact(name, made, {**meta, VERSION_KEY: str(FEATURES_VERSION), "features": _names()})


def vector_of(artifact: Artifact) -> Floats:
    """The weights as `dense.forward` reads them, [weights]; without the ranges."""
    arrays = weights_of(artifact)
    return np.concatenate([arrays[key].ravel() for key in ARRAYS[:-1]])


def hidden_of(weights: int) -> int:
    """How many hidden units a network of so many weights has."""
    return (weights - N_FEATURES) // (N_FEATURES + 2)


def _names() -> str:
    return " ".join(feature.name for feature in FEATURES)


def _params(artifact: Artifact, bound: float, in_range: bool) -> list[float]:
    """A choice may be worse by `bound`, so each score moves by at most half of it."""
    if not artifact:
        return [-1.0, 0.0]
    arrays = weights_of(artifact)
    hidden, bias, out, skip, ranges = (arrays[key].ravel().copy() for key in ARRAYS)
    if not in_range:
        ranges = np.tile([-np.inf, np.inf], N_FEATURES)
    elif is_by_group(artifact):  # then policies do not look at single nodes
        ranges[2 * OF_GROUP : 2 * (OF_GROUP + OF_NODE)] = np.tile([-np.inf, np.inf], OF_NODE)
    return [float(len(bias)), bound / 2.0, *hidden, *bias, *out, *skip, *ranges]


def is_by_group(artifact: Artifact) -> bool:
    """Whether no weight reads what nodes of a group differ in, so that an index of waits may be used."""
    if not artifact:
        return True
    arrays, own = weights_of(artifact), slice(OF_GROUP, OF_GROUP + OF_NODE)
    return not arrays["hidden"][:, own].any() and not arrays["skip"][own].any()


@dataclass(frozen=True)
class CorrectedPolicy(Policy):
    """Base of policies whose scores learned weights correct."""

    trained_as: ClassVar[str] = ""  # whose weights it takes; "" = its own

    artifact: Artifact = NO_ARTIFACT
    bound: Annotated[float, Range(0.0, may_be_infinite=True)] = 3.0  # best services
    in_range: bool = True  # weights count only for features as in training

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.artifact, f"{self.name}.artifact", self.trained_as or self.name)

    def with_correction(self, made: Memory, cluster: Cluster, rows: int = 1) -> Memory:
        """A memory with the numbers of the correction at the end of `params`, and room in `floats`.

        The room is `features_memory` for so many rows.
        """
        params = np.append(made.params, _params(self.artifact, self.bound, self.in_range))
        return made._replace(params=params, floats=np.append(made.floats, features_memory(cluster, rows)))


@helper(inline=True)
def has_weights(params: Any, at: int) -> bool:
    """Whether there is anything to correct with."""
    return bool(params[at] >= 0.0)


@helper(inline=True)
def row_at(floats: Any) -> int:
    """Where in `floats` the last row of features is."""
    return len(floats) - N_FEATURES


@helper(inline=True)
def fast_at(view: View, floats: Any, rows: int) -> int:
    """Where in `floats` the feature `fast` of each type is, before so many rows."""
    return len(floats) - rows * N_FEATURES - view.fixed_s.shape[1]


@helper
def note_free(view: View, memory: Memory, work: Any, slots: float, wait_s: float) -> None:
    """Note the features that all nodes share, by the index; `slots` of the cluster, `wait_s` the least."""
    idle, warm, row = 0, 0, row_at(memory.floats)
    for g in range(n_groups(memory)):
        item, free = any_item(memory), n_free(memory, any_item(memory), g)
        if work.model_idx >= 0 and view.load_s[work.model_idx, type_of_group(memory, g)] > 0.0:
            item = int(work.model_idx)
        idle += free
        warm += n_free(memory, item, g)
    note_request(view, work, memory.floats, row, slots, idle, warm, wait_s)
    for k in range(OF_GROUP, OF_GROUP + OF_NODE):
        memory.floats[row + k] = 0.0


@helper
def correction(params: Any, at: int, floats: Any, row: int) -> float:
    """The correction for a row of features in `floats`, in best services; 0 outside of their ranges."""
    hidden, limit = int(params[at]), params[at + 1]
    ranges = at + _HEAD + n_weights(N_FEATURES, hidden)
    for k in range(N_FEATURES):
        value = floats[row + k]
        if not params[ranges + 2 * k] <= value <= params[ranges + 2 * k + 1]:
            return 0.0
    output = forward(params, at + _HEAD, floats, row, N_FEATURES, hidden)
    return max(-limit, min(limit, output))
