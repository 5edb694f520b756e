"""A shadow policy beside the live one in a running gateway: each figure is what it says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from support.backends import Options, launched
from support.builders import cluster, requests
from support.gateway_load import (
    BASE_S,
    SLOTS,
    SPEEDS,
    TOKEN_S,
    Traffic,
    drive,
    of_speeds,
    poisson,
    recorded,
)
from support.served import chat, served
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import Requests
from trimtab.engine.simulator import run
from trimtab.experiments.serving.replay import replay
from trimtab.policies import find

SIGMA = 0.3


def nodes() -> Cluster:
    speed = np.array(SPEEDS)
    plain = cluster(len(SPEEDS), types=len(SPEEDS), slots=SLOTS, queue_max=0)
    return replace(plain, fixed_s=BASE_S / speed[None, :], unit_s=TOKEN_S / speed[None, :])


def as_requests(c: Cluster, traffic: Traffic, noise_seed: int) -> Requests:
    """The traffic as the simulator takes it, with service times as the backends draw them."""
    n = len(traffic.at_s)
    drawn = requests(c, n)
    work, truth = drawn.work.copy(), drawn.truth.copy()
    work["arrival_s"], work["units"] = traffic.at_s, traffic.tokens
    work["estimate_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    truth["units"] = work["units"]
    rng = np.random.default_rng(noise_seed)
    truth["factor"] = np.exp(rng.normal(-SIGMA * SIGMA / 2, SIGMA, n))
    return replace(drawn, work=work, truth=truth)


def mean_s(c: Cluster, r: Requests, policy: str) -> float:
    rows = run(c, r, *_options(), find(policy), seed=1, mode="interpreted").state.requests
    return float((rows["finish_s"] - r.work["arrival_s"]).mean())


def _options() -> tuple[Any]:
    from trimtab.domain.options import Options as HostOptions

    return (HostOptions(),)


def test_disagreement_is_counted_exactly(tmp_path: Path) -> None:
    """One request after the other: round robin and random choose what they choose among idle nodes."""
    n, quick = 60, Options(base_s=0.001, output_s=0.001, slots=SLOTS)
    live, shadow = "round-robin", "random"

    with (
        launched(*(replace(quick, name=f"b{k}") for k in range(3))) as started,
        served(tmp_path, recorded(started, policy=live, shadow=shadow)) as gateway,
    ):
        for i in range(n):
            assert gateway.call("/v1/chat/completions", chat(), x_request_id=f"r{i}").status == 200
        receipts = [gateway.receipt(f"r{i}") for i in range(n)]
        status = gateway.admin("/admin/status").json()
        counted = gateway.metric("trimtab_shadow_disagreements_total")
    apart = cluster(3, slots=SLOTS, queue_max=0)
    drawn = requests(apart, n, load=1e-6)
    chosen = [
        run(apart, drawn, *_options(), find(policy), mode="interpreted").state.requests["node_idx"]
        for policy in (live, shadow)
    ]
    assert [r["decision"]["candidates"][0]["node"] for r in receipts] == [f"b{j}" for j in chosen[0]]
    assert [r["decision"]["shadow"] for r in receipts] == [f"b{j}" for j in chosen[1]]
    differ = int((chosen[0] != chosen[1]).sum())
    assert counted == differ
    assert status["shadow"]["decisions"] == n
    assert status["shadow"]["disagreement_frac"] == differ / n


def test_the_replayed_difference_is_the_true_one_of_known_service_models(tmp_path: Path) -> None:
    """What is true of this traffic: the mean over many draws of the backends' noise."""
    traffic = poisson(500, load=0.6, seed=21)
    live, shadow = "random", "least-expected-wait"

    with (
        launched(*of_speeds(sigma=SIGMA)) as started,
        served(tmp_path, recorded(started, policy=live, shadow=shadow)) as gateway,
    ):
        assert asyncio.run(drive(gateway.url, traffic)) == [200] * 500
        found = gateway.admin("/admin/status").json()["shadow"]
    replayed = replay(tmp_path / "recording", [live, shadow], mode="interpreted")
    difference_s = replayed.policies[1].difference_s
    assert difference_s is not None
    assert difference_s.ci95 is not None
    c = nodes()
    drawn = [as_requests(c, traffic, seed) for seed in range(10)]
    true_s = float(np.mean([mean_s(c, r, shadow) - mean_s(c, r, live) for r in drawn]))
    assert replayed.requests == 500
    assert not replayed.is_hidden
    assert true_s < 0.0
    # Twice the half width: a 95 % interval misses once in 20 runs, this one hardly ever.
    assert abs(difference_s.mean - true_s) <= 2 * difference_s.ci95
    assert found["disagreement_frac"] > 0.0
    assert found["predicted_difference_frac"] < 0.0
