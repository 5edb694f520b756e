"""What learned plans know of each pair of waiting request and slot, the same numbers in training and hosts.

Every feature is a rational function of seconds and counts with values from -1 to 1, as in `features`. They
are those of one moment of a schedule in the making: after each choice its slot is free later, and what was
loaded there need not be loaded again.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Floats, Ints
from trimtab.domain.view import View
from trimtab.policies.shared.demand_forecast import loads_s, services_s
from trimtab.policies.shared.features import Feature

PLAN_FEATURES_VERSION: Final = 1  # of this file's functions; weights of another version are refused
PLAN_FEATURES: Final = (
    Feature("load", "share of load and best", "seconds to load what the node lacks", 0.0, 1.0),
    Feature("slower", "difference over sum", "estimated service there, against the best type", 0.0, 1.0),
    Feature("free", "share of this and usual", "seconds until the slot is free", 0.0, 1.0),
    Feature("completion", "share of this and usual", "free, load and service there", 0.0, 1.0),
    Feature("own", "share of this and usual", "load and service there", 0.0, 1.0),
    Feature("idle", "0 or 1", "whether the slot is free now", 0.0, 1.0),
    Feature("waited", "share of waited and usual", "seconds since the request came", 0.0, 1.0),
    Feature("best", "share of best and usual", "estimated service on the best type", 0.0, 1.0),
    Feature("alike", "a / (a + 4)", "a = other requests in the plan that need the same models", 0.0, 1.0),
    Feature("crowding", "share of requests and slots", "in the plan", 0.0, 1.0),
)
N_PLAN_FEATURES: Final = len(PLAN_FEATURES)
_MANY_ALIKE: Final = 4.0
_LEAST_S: Final = 1e-9
_HUGE: Final = 1e300  # seconds, of what cannot be


class Window(NamedTuple):
    """Requests that wait and slots that become free, as one plan sees them.

    `load_s` and `free_s` change while a schedule is made.
    """

    service_s: Floats  # [requests, slots], inf: not served
    load_s: Floats  # [requests, slots]
    free_s: Floats  # [slots] until free
    best_s: Floats  # [requests] service on the best type
    waited_s: Floats  # [requests]
    item: Ints  # [requests] equal = they need the same models; -1 = none
    node: Ints  # [slots]
    alike: Floats  # [requests] others with the same item
    usual_s: Floats  # [1] mean of best_s


def window(
    service_s: Floats,
    load_s: Floats,
    free_s: Floats,
    best_s: Floats,
    waited_s: Floats,
    item: Ints,
    node: Ints,
) -> Window:
    """A window of these arrays."""
    same = (item[:, None] == item) & (item >= 0)
    alike = np.maximum(0.0, same.sum(axis=1) - 1.0)
    usual_s = np.array([max(_LEAST_S, float(best_s.mean()))])
    times_s: list[Any] = [service_s, load_s, free_s, best_s, waited_s]
    own: list[Any] = [np.array(a, np.float64, order="C") for a in times_s]
    own += [np.array(item, np.int64), np.array(node, np.int64), alike, usual_s]
    return Window(*own)


def window_of(view: View, waiting: Any, node: Ints, free_s: Floats) -> Window:
    """The window of held requests and slots, by the view's estimates."""
    load_s, service_s = loads_s(view, waiting)[:, node], services_s(view, waiting)
    adapters = view.load_s.shape[0] + 1
    item = (waiting["model_idx"].astype(np.int64) + 1) * adapters + waiting["adapter_idx"] + 1
    waited_s = np.maximum(0.0, view.context.now_s - waiting["arrival_s"])
    best_s = np.minimum(waiting["estimate_s"], _HUGE)
    there_s = service_s[:, view.nodes.type_idx[node]]
    return window(there_s, load_s, free_s, best_s, waited_s, np.where(item > 0, item, -1), node)


@helper(inline=True)
def _share(x: float, usual: float) -> float:
    return x / (x + usual) if x < _HUGE else 1.0


@helper
def _note_column(w: Window, j: int, x: Any) -> None:
    """Write the features of all requests with slot j."""
    usual_s, n, m = w.usual_s[0], len(w.best_s), len(w.free_s)
    for i in range(n):
        best_s, load_s, there_s = max(w.best_s[i], _LEAST_S), w.load_s[i, j], w.service_s[i, j]
        x[i, j, 0] = _share(load_s, best_s)
        x[i, j, 1] = (there_s - best_s) / (there_s + best_s) if there_s < _HUGE else 1.0
        x[i, j, 2] = _share(w.free_s[j], usual_s)
        x[i, j, 3] = _share(w.free_s[j] + load_s + there_s, usual_s)
        x[i, j, 4] = _share(load_s + there_s, usual_s)
        x[i, j, 5] = 1.0 if w.free_s[j] <= 0.0 else 0.0
        x[i, j, 6] = _share(w.waited_s[i], usual_s)
        x[i, j, 7] = _share(best_s, usual_s)
        x[i, j, 8] = _share(w.alike[i], _MANY_ALIKE)
        x[i, j, 9] = n / (n + m)


@kernel
def note_pairs(w: Window, x: Any) -> None:
    """Write the features of all pairs, x [requests, slots, features]."""
    for j in range(len(w.free_s)):
        _note_column(w, j, x)


@helper
def take(w: Window, i: int, j: int, x: Any) -> None:
    """Append request i to slot j's schedule: change the window, and the features of what it changes."""
    w.free_s[j] += w.load_s[i, j] + w.service_s[i, j]
    for other in range(len(w.free_s)):
        if w.node[other] == w.node[j]:
            if w.item[i] >= 0:
                for k in range(len(w.best_s)):
                    if w.item[k] == w.item[i]:
                        w.load_s[k, other] = 0.0
            _note_column(w, other, x)


@kernel
def follow(w: Window, requests: Any, slots: Any, x: Any) -> None:
    """The features before each choice of a sequence, x [steps, requests, slots, features]."""
    for j in range(len(w.free_s)):
        _note_column(w, j, x[0])
    for step in range(len(requests)):
        if step > 0:
            x[step] = x[step - 1]
            take(w, requests[step - 1], slots[step - 1], x[step])
