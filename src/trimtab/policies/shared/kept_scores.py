"""Scores of nodes that depend on their resources and a request's class only: kept until the node changes.

The change log of the view names the nodes whose scores are void. So a decision costs O(nodes) comparisons,
and O(classes + resources) for each node that changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import View


def none_kept(cluster: Cluster) -> Floats:
    """Room for a score of each class on each node, [classes × nodes]; nan = not kept."""
    return np.full(len(cluster.class_names) * cluster.n_nodes, np.nan)


@helper(inline=True)
def drop_changed(view: View, floats: Any, first: int) -> None:
    """Drop the scores, kept from `first` on, of the nodes that have changed."""
    n = view.context.n_nodes
    for i in range(view.context.n_changed):
        for m in range(len(view.fixed_s)):
            floats[first + m * n + view.changed[i]] = np.nan
