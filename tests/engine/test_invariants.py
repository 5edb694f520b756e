"""Conservation, capacity and bookkeeping between any two events of random scenarios with everything on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from support.invariants import TelemetryShadow, check_all
from support.scenarios import Case, cases
from trimtab.domain.policy import Decider
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE

MAX_EVENTS = 3000  # recurring faults go on for ever while a policy holds what nobody takes


def check_every_moment(case: Case) -> None:
    driver = Driver(
        case.cluster,
        case.requests,
        case.options,
        Decider.of(case.policy, case.order),
        seed=case.seed,
        mode="interpreted",
    )
    shadow = TelemetryShadow(driver.state)
    before_s = 0.0
    for _ in range(MAX_EVENTS):
        code = driver.advance(max_steps=1)
        check_all(driver.state)
        if case.options.telemetry_period_s > 0:
            shadow.check(driver.state)
        assert driver.now_s >= before_s
        before_s = driver.now_s
        if code == DONE:
            break


def random_cases(n: int) -> settings:
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@random_cases(25)
@given(cases)
def test_every_moment_adds_up(case: Case) -> None:
    check_every_moment(case)


@pytest.mark.full
@random_cases(200)
@given(cases)
def test_every_moment_of_many_cases_adds_up(case: Case) -> None:
    check_every_moment(case)
