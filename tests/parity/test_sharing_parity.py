"""Parts and batches in the simulator and on the live host: the same run, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_host_parity import CASES, PLAIN, RICH, assert_same, both, work_for

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.policies.data_aware.split_merge import SplitMerge

SHARING = SplitMerge(plan_period_s=1.0, recent=20, batch_max=3, batch_from_load_frac=0.2, window_frac=0.5)


def shared(c: Cluster, options: Options) -> Options:
    """Classes that split and are batched."""
    classes = len(c.class_names)
    return replace(options, join_s=np.full(classes, 0.1), batch_marginal_frac=np.full(classes, 0.5))


@pytest.mark.parametrize("case", CASES)
def test_both_hosts_split_and_batch_alike(case: str) -> None:
    c, options = CASES[case]
    r = work_for(c, 120)
    r.work["parts_max"] = 1 + np.arange(120) % 4
    simulated, live = both(c, r, shared(c, options), SHARING, mode="interpreted")
    assert_same(simulated, live)
    np.testing.assert_array_equal(simulated.state.groups, live.state.groups)
    np.testing.assert_array_equal(simulated.state.stages, live.state.stages)


def test_the_cases_split_and_batch() -> None:
    for c in (PLAIN, RICH):
        r = work_for(c, 120)
        r.work["parts_max"] = 4
        _, live = both(c, r, shared(c, Options()), SHARING, mode="interpreted")
        assert (live.state.runs["started"] == 1).sum() > 10
        starts_s = live.state.requests["start_s"]
        alone = np.unique(starts_s[~np.isnan(starts_s)])
        assert len(alone) < (~np.isnan(starts_s)).sum()
