"""The host of chains in virtual time decides what the simulator does."""

from __future__ import annotations

import pytest
from bench.chain_pacing import course, in_simulator, in_virtual_time


def test_the_host_in_virtual_time_equals_the_simulator() -> None:
    hosted_s, makespan_s = in_virtual_time(*course(7))
    simulated_s, simulated_makespan_s = in_simulator(*course(7))
    assert hosted_s == pytest.approx(simulated_s, rel=1e-9)
    assert makespan_s == pytest.approx(simulated_makespan_s, rel=1e-9)
