"""The workloads of the page on bursts: each runs, at the load and with the requests that the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.bursts import GENERATED, REQUESTS, scenarios

from trimtab.experiments.scenario.build import build


def test_every_workload_has_its_requests_and_load(tmp_path: Path) -> None:
    found = dict(scenarios(0.7, tmp_path))
    assert found.keys() >= GENERATED.keys()
    for name in GENERATED:
        inputs = build(found[name], 0)
        assert len(inputs.requests) == REQUESTS
        assert inputs.offered_load == pytest.approx(0.7, rel=0.02)
        assert np.all(inputs.cluster.load_s == 60.0)  # of the only model, on every type
