"""Conservation, capacity and bookkeeping between any two events of random scenarios with everything on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from support.invariants import check_every_moment
from support.scenarios import Case, cases

EVENTS_MOST = 3000  # recurring faults go on for ever while a policy holds what nobody takes


def random_cases(n: int) -> settings:
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@random_cases(25)
@given(cases)
def test_every_moment_adds_up(case: Case) -> None:
    check_every_moment(case.driver(), case.options.telemetry_period_s, EVENTS_MOST)


@pytest.mark.full
@random_cases(200)
@given(cases)
def test_every_moment_of_many_cases_adds_up(case: Case) -> None:
    check_every_moment(case.driver(), case.options.telemetry_period_s, EVENTS_MOST)
