"""Every parameter of the catalogues declares what it may be, and nothing else is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import pytest

from trimtab.domain.allocator import Allocator
from trimtab.domain.parameters import (
    Tunable,
    base_type,
    check_parameters,
    check_value,
    is_declared,
    kind_text,
    kinds_of,
    tunable,
)
from trimtab.domain.policy import Policy
from trimtab.errors import UsageError
from trimtab.experiments.colocation.sharing_policies import SHARINGS
from trimtab.policies import find, names, policy_class
from trimtab.policies.load_aware.power_of_d import PowerOfD
from trimtab.training.allocator_catalogue import (
    allocator_class,
    allocator_names,
    clock_of,
    find_allocator,
    restart_cost_of,
)
from trimtab.training.clocks import CLOCKS
from trimtab.training.restart_costs import RESTART_COSTS
from trimtab.validation.named_classes import values_of

CLASSES: dict[str, type] = {
    **{name: policy_class(name) for name in names()},
    **{f"{name} for training": allocator_class(name) for name in allocator_names()},
    **CLOCKS,
    **RESTART_COSTS,
    **{f"sharing {name}": cls for name, cls in SHARINGS.items()},
}
PARAMETERS = [(name, field, kind) for name, cls in CLASSES.items() for field, kind in kinds_of(cls).items()]


@pytest.mark.parametrize(("name", "field", "kind"), PARAMETERS, ids=[f"{n}.{f}" for n, f, _ in PARAMETERS])
def test_a_parameter_is_declared_and_nothing_else_is_taken(name: str, field: str, kind: Any) -> None:
    assert is_declared(kind), f"{name}.{field} takes any text: declare its words as a Literal"
    wrong = {str: "no-such-word", bool: "maybe", int: "2.5", float: "nan"}
    with pytest.raises(UsageError) as caught:
        values_of(CLASSES[name], name, f"{field}={wrong[base_type(kind) or str]}")
    assert caught.value.field == f"{name}.{field}"
    assert all(str(word) in str(caught.value) for word in get_args(kind) if get_origin(kind) is Literal)
    check_parameters(CLASSES[name](), name)  # the defaults are right


DECLARED = [p for p in PARAMETERS if any(isinstance(part, Tunable) for part in get_args(p[2]))]


@pytest.mark.parametrize(("name", "field", "kind"), DECLARED, ids=[f"{n}.{f}" for n, f, _ in DECLARED])
def test_a_search_looks_where_values_are_allowed(name: str, field: str, kind: Any) -> None:
    search = tunable(kind)
    assert search is not None
    for place in (0.0, 0.5, 1.0):
        value = search.at(place)
        assert search.place(value) == pytest.approx(place)
        check_value(kind, round(value) if base_type(kind) is int else value, field)
    assert search.least <= getattr(CLASSES[name](), field) <= search.most


def test_a_range_with_two_ends_is_searched_and_others_only_where_declared() -> None:
    kinds = kinds_of(PowerOfD)
    assert tunable(kinds["d"]) == Tunable(1, 8)
    assert tunable(float) is None
    assert tunable(Literal["mean", "p99"]) is None
    with pytest.raises(UsageError, match="above 0"):
        Tunable(0.0, 1.0, "log")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "elasticflow(admit=maybe)",
            r"elasticflow.admit: unknown .*'maybe'\); expected one of one-by-one, tog",
        ),
        ("chronus(objective=foo)", r"chronus.objective: unknown .*adaptive, maximize, minimize"),
        (
            "tiresias(thresholds=abc)",
            r"tiresias.thresholds: out of range .*'abc'\); expected positive numbers",
        ),
        ("tiresias(thresholds=7200/3600)", r"ascending order with / between them"),
        ("tiresias(promote=inf)", r"tiresias.promote: out of range \(got inf\); expected a number from 0 on"),
        ("pollux(power=nan)", r"pollux.power: out of range \(got nan\); expected a number$"),
        ("shockwave(window=0)", r"shockwave.window: out of range \(got 0\); expected an integer from 1 on"),
        ("shockwave(window=2.5)", r"shockwave.window: wrong type \(got 2.5\); expected an integer from 1 on"),
    ],
)
def test_a_wrong_value_of_an_allocator_is_named_with_what_is_right(spec: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        find_allocator(spec)


def test_words_and_numbers_of_policies_clocks_and_costs_are_checked() -> None:
    assert find("e2(rebalance=inf)").dispatch.rebalance == math.inf  # type: ignore[attr-defined]
    for made, problem in (
        (lambda: find("auto(objective=p50)"), "auto.objective: unknown .*one of mean, p99"),
        (
            lambda: find("jsq-memory(d=4,m=5)"),
            r"jsq-memory.m: out of range \(got 5\); expected d \+ m at most",
        ),
        (lambda: find("late-binding+priority-ageing(weight_s=-1)"), "priority-ageing.weight_s: out of range"),
        (lambda: PowerOfD(d=9), "power-of-d.d: out of range .*an integer from 1 to 8"),
        (lambda: clock_of("rounds(period_s=0)"), "rounds.period_s: out of range .*a number above 0"),
        (lambda: restart_cost_of("flat(seconds_s=inf)"), "flat.seconds_s: out of range"),
    ):
        with pytest.raises(UsageError, match=problem):
            made()


def test_a_class_of_a_users_own_is_checked_by_what_it_declares() -> None:
    @dataclass(frozen=True)
    class Own(Policy):
        words: str = "any"
        seconds: float = 1.0
        table: Any = None

    @dataclass(frozen=True)
    class OwnAllocator(Allocator):
        count: int = 1

    assert Own(words="others", table=[1]).words == "others"
    assert Own(seconds=2).seconds == 2  # an integer is a number
    with pytest.raises(UsageError, match=r"Own.seconds: out of range \(got nan\)"):
        Own(seconds=math.nan)
    with pytest.raises(UsageError, match=r"OwnAllocator.count: wrong type \(got True\)"):
        OwnAllocator(count=True)


def test_kinds_in_words() -> None:
    kinds = {**kinds_of(allocator_class("muxflow")), **kinds_of(policy_class("bounded-hash"))}
    found = {field: kind_text(kinds[field]) for field in ("sharing", "elastic", "margin", "c", "points")}
    assert found == {
        "sharing": "one of space, turns, none",
        "elastic": "true or false",
        "margin": "a number from 0 to 1",
        "c": "a number above 1",
        "points": "an integer from 1 on",
    }
