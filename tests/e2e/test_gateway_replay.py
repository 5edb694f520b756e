"""A gateway as a process, recorded under load over real demo backends; its recording replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from conftest import process
from gateway_load import drive, poisson, recorded, uneven
from served import served
from trimtab.experiments.replay import replay
from trimtab.runtime.gateway.demo import launched

N_REQUESTS = 700


def test_a_recording_of_live_traffic_replays(tmp_path: Path) -> None:
    """A moderate load: the p99 of a long queue is mostly luck, however well the replay decides."""
    traffic = poisson(N_REQUESTS, load=0.55, seed=3)
    with launched(*uneven()) as started, served(tmp_path, recorded(started)) as gateway:
        statuses = asyncio.run(drive(gateway.url, traffic))
    assert statuses == [200] * N_REQUESTS
    done = replay(tmp_path / "recording")
    (only,) = done.policies
    assert (done.requests, done.rows_dropped) == (N_REQUESTS, 0)
    assert abs(only.error_frac.mean_s) <= 0.05
    assert abs(only.error_frac.p99_s) <= 0.10
    compared = process("compare", "--trace", "recording", "--json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
