"""A policy reads what it declares as its needs and nothing else, found by watching what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.builders import run
from support.conformance_cases import CASES, ENGINE_CASES
from support.learned import with_weights
from trimtab.compiled.kernel import interpreted
from trimtab.domain.needs import Need
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import can_take
from trimtab.policies import find, names

BY_FIELD = {field: {need for need in Need if field in need.fields} for need in Need for field in need.fields}
SPECS = sorted({*names("dispatch"), *names("order")})
WITH_ALL_ON = {"cost-index": "cost-index(w_price=1)"}  # prices are read where they count
INNER = ("context", "engines")  # records of the view
is_able = interpreted(can_take)


class Recorded:
    """Shows another object and notes which of its attributes are read."""

    def __init__(self, shown: Any, seen: set[str], inner: tuple[str, ...] = ()) -> None:
        self._shown, self._seen, self._inner = shown, seen, inner

    def __getattr__(self, name: str) -> Any:
        self._seen.add(name)
        value = getattr(self._shown, name)
        return Recorded(value, self._seen) if name in self._inner else value


class Watched(Policy):
    """Decides as another policy and notes what that reads, plans and holds."""

    def __init__(self, policy: Policy) -> None:
        self.seen: set[str] = set()
        self.found: set[Need] = set()
        self.draws, self.plan_period_s, self.init = policy.draws, policy.plan_period_s, policy.init  # type: ignore[method-assign]
        self.needs, self.degrades, self.compares = policy.needs, policy.degrades, policy.compares  # type: ignore[misc]
        self._policy = policy
        self.watched = tuple(Watched(candidate) for candidate in policy.candidates)
        seen, found = self.seen, self.found
        decide, key = interpreted(policy.dispatch), interpreted(policy.order)

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            shown = Recorded(view, seen, INNER)
            count = decide(shown, plan, Recorded(work, seen), memory, draws, ranking)
            if count == 0 and any(is_able(view, work, j) for j in range(view.context.n_nodes)):
                found.add(Need.HOLDING)
            return int(count)

        def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
            return float(key(Recorded(view, seen, INNER), plan, Recorded(work, seen), memory))

        if policy.dispatches():
            self.dispatch = dispatch  # type: ignore[method-assign]
        self.order = order  # type: ignore[method-assign]

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return self.watched

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        made = self._policy.plan(Recorded(view, self.seen, INNER), history, waiting, rollout)  # type: ignore[arg-type]
        if made is not None:
            set_fields = {name for name, array in made._asdict().items() if array.size}
            self.seen |= set_fields & BY_FIELD.keys()
        return made

    def all_seen(self) -> tuple[set[str], set[Need]]:
        parts = [each.all_seen() for each in self.watched]
        return self.seen.union(*(s for s, _ in parts)), self.found.union(*(f for _, f in parts))


def unread(policy: Policy, fields: set[str]) -> set[Need]:
    """Needs that nothing was read for."""
    return {need for need in policy.needs if need.fields and not fields & set(need.fields)}


def observed(spec: str, cases: Sequence[str], *, all_of_them: bool) -> tuple[Policy, set[str], set[Need]]:
    """The policy, the fields of needs that it reads, and whether it holds requests.

    In all of the cases, or in as many as it takes to see each declared need read.
    """
    is_order = spec.partition("(")[0] not in names("dispatch")
    policy = find(f"least-expected-wait+{spec}").order if is_order else with_weights(find(spec).dispatch)
    fields: set[str] = set()
    found: set[Need] = set()
    for case in cases:
        watched = Watched(policy)
        c, r, options = (CASES | ENGINE_CASES)[case]()
        base = find("least-expected-wait").dispatch
        run(c, r, options, *(Decider(base, watched) if is_order else Decider.of(watched)), compiled=False)
        seen, held = watched.all_seen()
        fields, found = fields | seen & BY_FIELD.keys(), found | held
        if not (all_of_them or unread(policy, fields)):
            break
    return policy, fields, found


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_reads_what_it_declares_and_nothing_else(spec: str, pytestconfig: pytest.Config) -> None:
    """The first case is one with everything on, in turn."""
    everything_on = ("stale", "fresh") if SPECS.index(spec) % 2 else ("fresh", "stale")
    policy, fields, found = observed(
        WITH_ALL_ON.get(spec, spec),
        [*everything_on, "herd", "plain", "language_models"],
        all_of_them=pytestconfig.getoption("--full"),
    )
    undeclared = {field for field in fields if not BY_FIELD[field] & policy.all_needs}
    assert not undeclared
    assert found <= policy.all_needs
    assert not unread(policy, fields)
