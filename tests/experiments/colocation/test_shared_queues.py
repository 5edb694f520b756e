"""Queues that divide nodes between requests and jobs: who gets nodes, when, under each scheme."""

from __future__ import annotations

import numpy as np
import pytest

from support.shared_clusters import small_shared
from trimtab.domain.queue_tree import Queue, QueueScheme, QueueTree
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.colocation.queue_division import QueueDivision
from trimtab.experiments.colocation.shared_kind import SHARED_KIND
from trimtab.experiments.colocation.sharing_policies import canonical_sharing, find_sharing
from trimtab.experiments.kinds import load_any

QUEUES = {
    "serving": {"weight": 2, "guarantee": 0.5, "notice_s": 30, "tenants": ["answer"]},
    "research": {
        "guarantee": 0.5,
        "queues": {"a": {"guarantee": 0.5, "tenants": ["a"]}, "b": {"tenants": ["b"]}},
    },
}


DECLARED = (
    Queue("serving", weight=1, guarantee=0.5, notice_s=60.0, tenants=("answer",)),
    Queue("jobs", weight=3, tenants=("team",)),
)


def division(scheme: QueueScheme, queues: tuple[Queue, ...] = DECLARED) -> QueueDivision:
    """Eight nodes of four GPUs and 16 CPUs; requests have half guaranteed after a notice of 60 s."""
    tree = QueueTree.of(queues, ["gpus", "cpus"])
    leaves = np.array([0]), np.array([1])
    amounts = np.array([32.0, 128.0]), np.array([1.0, 1.0])
    return QueueDivision(tree, tree.under(scheme), *leaves, *amounts, 4)


def kept(made: QueueDivision, now_s: float, busy: float, asked: float, trains: int, cpus: float = 1.0) -> int:
    """Nodes that serve, where the last `trains` nodes have jobs."""
    wanted = np.array([[asked, asked * cpus]])
    return made.keeps(now_s, np.array([busy]), wanted, np.arange(8) >= 8 - trains)


def test_without_queues_who_has_a_node_keeps_it() -> None:
    made = division(QueueScheme.NONE)
    assert kept(made, 0.0, 8.0, 0.0, 0) == 8  # nobody else wants any
    assert kept(made, 60.0, 8.0, 100.0, 0) == 2  # as many as requests want
    assert kept(made, 120.0, 32.0, 100.0, 6) == 2  # the others are held


def test_shares_hold_for_free_nodes_and_guarantees_are_taken_back_after_notice() -> None:
    assert kept(division(QueueScheme.FLAT), 0.0, 32.0, 32.0, 0) == 4  # alike
    for scheme, after in ((QueueScheme.GUARANTEES, 2), (QueueScheme.PREEMPTION, 4)):
        made = division(scheme)
        assert kept(made, 0.0, 32.0, 32.0, 0) == 4  # its weight is a quarter, its guarantee half
        assert kept(made, 60.0, 8.0, 100.0, 4) == 2  # it wants no more, and lends
        assert [kept(made, t, 32.0, 100.0, 6) for t in (120.0, 179.0)] == [2, 2]
        assert kept(made, 180.0, 32.0, 100.0, 6) == after
        assert made.taken_back == (after == 4)


def test_the_dominant_resource_counts_under_hdrf() -> None:
    """Jobs take 8 CPUs a GPU: a GPU of theirs is 1/16 of the CPUs, one of requests 1/32 of the GPUs.

    Equal weights: 14 GPUs of jobs leave 16 CPUs, for 16 GPUs of requests. H-DRF: twice as many as jobs, 21.
    """
    alike = tuple(Queue(path, tenants=(path,)) for path in ("serving", "jobs"))
    plain = division(QueueScheme.PREEMPTION, alike)
    dominant = division(QueueScheme.HDRF, alike)
    assert kept(plain, 0.0, 32.0, 32.0, 0, cpus=8.0) == 4
    assert kept(dominant, 0.0, 32.0, 32.0, 0, cpus=8.0) == 6
    assert kept(dominant, 0.0, 32.0, 32.0, 0, cpus=1.0) == 4


@pytest.mark.parametrize("scheme", list(QueueScheme))
def test_requests_and_jobs_end_under_every_scheme(scheme: QueueScheme) -> None:
    generate = small_shared()["jobs"]["generate"] | {"tenants": {"a": 1, "b": 1}}
    file = small_shared(queues=QUEUES, jobs={"generate": generate, "load": 2.0})
    inputs = SHARED_KIND.build(load_any(file), 0, None)
    run = SHARED_KIND.run(inputs, f"queues(scheme={scheme})", "interpreted")
    metrics = SHARED_KIND.measure(run)
    assert metrics["jobs_finished"] > 0
    assert 0.0 < metrics["slo_attained_frac"] <= 1.0
    assert 1 / 3 <= metrics["queue_jain_share"] <= 1.0
    assert run.trains.any()
    assert not run.trains.all()


def test_chains_have_queues_beside_requests_and_jobs() -> None:
    """All three kinds of work in one pass; a chain of two stages is a tenant by its name."""
    requests = small_shared()["requests"]
    stages = {
        "first": {"class": "answer", "size": 1},
        "second": {"class": "answer", "after": ["first"], "size": 1},
    }
    requests["chains"] = {"film": {"stages": stages}}
    requests["workload"]["generate"]["mix"] = {"answer": {"share": 1, "size": 1}, "film": {"share": 0.3}}
    queues = {
        "serving": {"guarantee": 0.4, "notice_s": 30, "tenants": ["answer"]},
        "studio": {"guarantee": 0.3, "notice_s": 30, "tenants": ["film"]},
        "default": {},
    }
    inputs = SHARED_KIND.build(load_any(small_shared(queues=queues, requests=requests)), 0, None)
    run = SHARED_KIND.run(inputs, "queues", "interpreted")
    assert run.division is not None
    assert run.division.tree.leaf_paths[run.division.of_classes[1]] == "studio"
    assert run.jobs.finished.any()
    assert SHARED_KIND.measure(run)["slo_attained_frac"] > 0.5
    unnamed = {"serving": {"tenants": ["answer"]}, "jobs": {"tenants": [""]}}
    with pytest.raises(ScenarioError, match=r"queues: .*'film'.*a queue for this tenant"):
        load_any(small_shared(queues=unnamed, requests=requests))


def test_schemes_are_named_and_queues_are_needed() -> None:
    assert canonical_sharing("queues(scheme=preemption)") == "queues"
    with pytest.raises(UsageError, match=r"scheme.*'?fair'?.*one of none, flat, guarantees"):
        find_sharing("queues(scheme=fair)")
    inputs = SHARED_KIND.build(load_any(small_shared()), 0, None)
    with pytest.raises(ScenarioError, match=r"queues: has no queues"):
        SHARED_KIND.run(inputs, "queues", "interpreted")
    with pytest.raises(ScenarioError, match=r"queues\.a\.tenants\[0\]: .*'nobody'.*known tenant"):
        load_any(small_shared(queues={"a": {"tenants": ["nobody"]}, "default": {}}))


def test_the_built_in_scenario_compares_each_scheme() -> None:
    scenario = load_any("shared-queues")
    assert [find_sharing(policy).scheme for policy in scenario.policies] == list(QueueScheme)
