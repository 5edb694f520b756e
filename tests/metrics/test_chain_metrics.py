"""Metrics of chains, on runs that are worked out on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from support.chains import Stage, after, chained
from support.mini_policies import Scripted
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.engine.records import records_of
from trimtab.engine.simulator import run
from trimtab.metrics import Records, compute
from trimtab.metrics.chain_metrics import bottleneck, entering_frac, path_times, stage_summaries, waiting_path


def records(stages: dict[str, Stage], arrival_s: list[float], **options: Any) -> Records:
    c = cluster(2, nic_gib_per_s=1.0)
    r = chained(c, asked(c, arrival_s), stages)
    driver = run(c, r, Options(**options), Decider.of(Scripted()), mode="interpreted")
    return records_of(driver, c, r, np.full(1, np.inf))


def test_stretch_first_output_and_queueing_of_stages() -> None:
    """Node 0: a 2 s, then b 1 s and c 3 s, which wait for each other; d 1 s at node 1, 2 GiB from node 0.

    a ends at 2, b at 3, c at 6 (it waits 1 s), d starts at 6 + 2 (transfer) and ends at 9. Critical path
    2 + 3 + 1 = 6. b is a last stage: the first output is at 3.
    """
    stages = {
        "a": Stage(2.0),
        "b": Stage(1.0, after("a")),
        "c": Stage(3.0, after("a"), output_gib=2.0),
        "d": Stage(1.0, after("c"), key=1),
    }
    found = records(stages, [0.0])
    metrics = compute(found)
    assert metrics["completion_mean_s"] == 9.0
    assert metrics["stretch_mean"] == pytest.approx(1.5)
    assert metrics["first_output_mean_s"] == 3.0
    assert metrics["stage_queueing_mean_s"] == pytest.approx((0 + 0 + 1 + 2) / 4)
    assert metrics["moved_gib"] == 2.0
    assert metrics["recomputed_s"] == 0.0
    assert found.stages is not None
    names = [found.stages.names[k] for k in found.stages.stage_idx[waiting_path(found.stages, 0)]]
    assert names == ["chain.a", "chain.c", "chain.d"]
    times = path_times(found.stages, np.array([0]))
    assert times.own_s.tolist() == [[0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0], [2.0, 0.0, 1.0]]
    # c waits 1 s for node 0, which serves a for 2 s of 6, b for 1 s, c for 3 s; only d is at node 1.
    assert times.laid_s == pytest.approx([2 + 2 / 6, 1 / 6, 3 + 3 / 6, 3.0])


def test_waiting_to_enter_is_laid_on_what_fills_the_node() -> None:
    """Three runs at 0 on one node: split 1 s, then score 5 s; they enter at 0, 1 and 2 or later."""
    stages = {"split": Stage(1.0), "score": Stage(5.0, after("split"))}
    found = records(stages, [0.0, 0.0, 0.0])
    assert found.stages is not None
    times = path_times(found.stages, np.arange(3))
    first_s = found.stages.start_s[found.stages.stage_idx == 0]
    assert times.entering_s == first_s.sum() > 0.0
    assert times.own_s[0].tolist() == [0.0, 0.0, 3.0]
    summaries = stage_summaries(found.stages, np.ones(3, np.bool_))
    assert bottleneck(summaries).stage == "chain.score"
    total_s = found.stages.finish_s[found.stages.stage_idx == 1].sum()
    assert entering_frac(summaries) == pytest.approx(first_s.sum() / total_s)


def test_what_only_follows_skipped_stages_is_on_no_critical_path() -> None:
    """a 2 s, then d 1 s. `more`, 7 s, reads only `maybe`, which is skipped, so nothing of it is served."""
    stages = {
        "a": Stage(2.0),
        "maybe": Stage(5.0, after("a"), is_skipped=True),
        "more": Stage(7.0, after("maybe")),
        "d": Stage(1.0, after("a", "more")),
    }
    metrics = compute(records(stages, [0.0]))
    assert metrics["completion_mean_s"] == 3.0
    assert metrics["stretch_mean"] == pytest.approx(1.0)


def test_requests_without_stages_have_no_metrics_of_chains() -> None:
    c = cluster(1)
    r = asked(c, [0.0])
    driver = run(c, r, Options(), Decider.of(Scripted()), mode="interpreted")
    metrics = compute(records_of(driver, c, r, np.full(1, np.inf)))
    assert np.isnan([metrics["stretch_mean"], metrics["first_output_mean_s"], metrics["recomputed_s"]]).all()
