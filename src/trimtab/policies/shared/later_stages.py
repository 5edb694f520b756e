"""The stages after this one in its run, as seen from a node that it could run on.

Memory: the number of nodes of each type, in `memory.floats` behind the notes of nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import View, estimate_s, type_of_node
from trimtab.policies.shared.delivery import has_network
from trimtab.policies.shared.selection import notes_room


class Outlook(NamedTuple):
    """The rest of a run after a stage, in estimated seconds on its critical path."""

    after_s: Any  # mean over nodes; 0 = nothing follows
    usual_s: Any  # of one unit of the successor's class: mean over nodes
    best_s: Any  # of one unit of the successor's class: the least


def notes_and_types(cluster: Cluster) -> Floats:
    """Initial `memory.floats`: room for notes, then the number of nodes of each type."""
    counts = np.bincount(cluster.type_idx, minlength=cluster.n_types).astype(np.float64)
    return np.append(np.zeros(notes_room(cluster.n_nodes)), counts)


@helper(inline=True)
def _one_unit_s(view: View, class_idx: int, type_idx: int) -> float:
    return float(view.fixed_s[class_idx, type_idx] + view.unit_s[class_idx, type_idx])


@helper
def outlook(view: View, work: Any, floats: Any) -> Outlook:
    """The rest of the run after this stage."""
    c = work.next_class_idx
    if c < 0:
        return Outlook(0.0, 0.0, 0.0)
    first, best_s = view.context.n_nodes, np.inf
    own_s, able, next_s, next_able = 0.0, 0.0, 0.0, 0.0
    for g in range(view.unit_s.shape[1]):
        count = floats[first + g]
        here_s, there_s = estimate_s(view, work, g), _one_unit_s(view, c, g)
        if here_s < np.inf:
            own_s += count * here_s
            able += count
        if there_s < np.inf and count > 0.0:
            next_s += count * there_s
            next_able += count
            best_s = min(best_s, there_s)
    if able == 0.0 or next_able == 0.0 or next_s == 0.0:
        return Outlook(0.0, 0.0, 0.0)
    return Outlook(max(0.0, work.rank_s - own_s / able), next_s / next_able, best_s)


@helper
def least_after_s(view: View, work: Any, ahead: Outlook, j: int) -> float:
    """Least seconds of what follows if the stage runs on node j: the successor stays there, or data move.

    A node that serves the successor's class faster than the mean shortens what follows in proportion.
    """
    if ahead.usual_s <= 0.0:
        return 0.0
    scale = ahead.after_s / ahead.usual_s
    stays_s = scale * _one_unit_s(view, work.next_class_idx, type_of_node(view, j))
    return min(stays_s, scale * ahead.best_s + _moved_s(view, j))


@helper(inline=True)
def _moved_s(view: View, j: int) -> float:
    """Seconds that the stage's output takes over the link of node j alone; of a network its first one."""
    link = plain(view.out_first[j]) if has_network(view) else plain(view.rtt_s.shape[0] + j)
    gib_per_s = view.link_gib_per_s[link]
    return float(view.context.output_gib / gib_per_s) if 0.0 < gib_per_s < np.inf else 0.0
