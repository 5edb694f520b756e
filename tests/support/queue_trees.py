"""Hierarchical queues for tests: trees over the resources of a cluster, and what queues held over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options, Queues
from trimtab.domain.queue_tree import Queue, QueueTree
from trimtab.domain.requests import Requests


def with_queues(c: Cluster, r: Requests, queues: Sequence[Queue], options: Options | None = None) -> Options:
    """The options, with these top queues for the tenants of the requests."""
    tree = QueueTree.of(queues, (*c.resource_names, "slots"))
    leaves = tree.leaf_of(r.tenant_names)
    assert (leaves >= 0).all()
    return replace(options or Options(), queues=Queues(tree, tree.shape.leaf_row[leaves]))


def of_tenants(r: Requests, tenant_idx: Sequence[int] | np.ndarray, count: int) -> Requests:
    """The requests as of tenants a, b, …."""
    r.work["tenant_idx"] = tenant_idx
    return replace(r, tenant_names=tuple("abcdefgh"[:count]))
