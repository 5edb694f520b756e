"""Availability of nodes: failure rates from history, planned outages, and completion on nodes that may fail.

Failures of a node are taken as a Poisson process whose rate has a gamma prior, so the posterior mean after k
failures in T seconds of service is (a + k) / (b + T) (Gelman et al., Bayesian Data Analysis, 2013, §2.6). The
prior mean a / b is the rate of all nodes of its group together, and a = `PRIOR_FAILURES`: a node with few
failures of its own has about the rate of its group. Work of t seconds that starts anew after every failure
of rate λ takes (exp(λ t) − 1) / λ on average (Duda, Information Processing Letters 16, 1983; repair not
counted).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.compiled.kernel import helper
from trimtab.forecast.mixture import Floats

PRIOR_FAILURES: Final = 1.0


def hazards_per_s(
    failures: npt.ArrayLike, up_s: npt.ArrayLike, group_idx: npt.ArrayLike, prior: float = PRIOR_FAILURES
) -> Floats:
    """Failures per second of service to expect of each node [nodes]; 0 in groups without a failure.

    `failures` and `up_s`: counts and seconds of service so far [nodes]; `group_idx`: such as the node type.
    """
    count, served_s = np.asarray(failures, np.float64), np.asarray(up_s, np.float64)
    group = np.asarray(group_idx)
    total = np.bincount(group, count)[group]
    group_s = np.bincount(group, served_s)[group]
    known = (total > 0.0) & (group_s > 0.0)
    rate = np.where(known, total / np.where(known, group_s, 1.0), 1.0)
    return np.asarray(np.where(known, (prior + count) / (prior / rate + served_s), 0.0), np.float64)


def next_outages_s(outages: Any, n_nodes: int, now_s: float) -> tuple[Floats, Floats]:
    """Begin and end of the first planned outage of each node that is not over [nodes]; inf = none."""
    begin_s, end_s = np.full(n_nodes, np.inf), np.full(n_nodes, np.inf)
    for outage in outages[np.argsort(outages["start_s"], kind="stable")[::-1]]:
        if outage["end_s"] > now_s:
            begin_s[outage["node_idx"]], end_s[outage["node_idx"]] = outage["start_s"], outage["end_s"]
    return begin_s, end_s


@helper(inline=True)
def with_restarts_s(work_s: float, hazard_per_s: float) -> float:
    """(exp(λ t) − 1) / λ up to the third power of λ t, which it is for λ t well below 1."""
    risk = hazard_per_s * work_s
    return work_s * (1.0 + 0.5 * risk * (1.0 + risk / 3.0 * (1.0 + 0.25 * risk)))
