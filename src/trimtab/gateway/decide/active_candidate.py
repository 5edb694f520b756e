"""Which candidate of a composite policy decides, since when, and what rollouts say of all of them."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

from trimtab.domain.planning import Evidence
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan

logger = logging.getLogger(__name__)


class ActiveCandidate:
    """Follows the plans of one pool. Times are the pool's."""

    def __init__(self, policy: Policy, now_s: float) -> None:
        self._policy, self._since_s = policy, now_s
        self._active = self._switches = 0
        self._before: int | None = None  # the candidate before the last switch
        self._evidence: Evidence | None = None
        self._rollout_s = now_s
        self._against = 0  # which candidate was in force when it was simulated

    def reset(self, now_s: float) -> None:
        """The state was rebuilt: the first candidate decides until the next plan."""
        self._switch(0, now_s)

    def note(self, plan: Plan, now_s: float) -> None:
        """A plan takes force."""
        evidence = self._evidence_of(plan)
        if evidence is not None:
            self._evidence, self._rollout_s, self._against = evidence, now_s, self._active
        self._switch(int(plan.active_idx[0]), now_s)

    def _evidence_of(self, plan: Plan) -> Evidence | None:
        try:
            return self._policy.evidence(plan)  # type: ignore[no-any-return]  # that is its contract
        except Exception as error:  # shown only: no request may fail because of it
            logger.warning("policy %r raised %r in evidence()", self._policy.name, error)
            return None

    def _switch(self, to: int, now_s: float) -> None:
        if to != self._active:
            self._before, self._active, self._since_s = self._active, to, now_s
            self._switches += 1

    def summary(self, now_s: float) -> dict[str, Any] | None:
        """As plain data for JSON, ages in seconds; None = the policy is not composite."""
        names = [label(one) for one in self._policy.candidates]
        if not names:
            return None
        evidence = self._evidence
        return {
            "active": names[self._active],
            "since_s": now_s - self._since_s,
            "switches": self._switches,
            "before": None if self._before is None else names[self._before],
            "rollout_age_s": None if evidence is None else now_s - self._rollout_s,
            "against": names[self._against],
            "objective": None if evidence is None else evidence.objective,
            "each": [{"name": name, **_figures(evidence, k)} for k, name in enumerate(names)],
        }


def label(policy: Policy) -> str:
    """The name, with the parameters that differ from their defaults."""
    stated = [f for f in fields(policy) if f.init]  # type: ignore[arg-type]  # all policies are dataclasses
    given = [(f.name, getattr(policy, f.name), f.default) for f in stated]
    changed = ", ".join(f"{name} {value}" for name, value, usual in given if value != usual)
    return f"{policy.name} ({changed})" if changed else policy.name


def _figures(evidence: Evidence | None, k: int) -> dict[str, float | None]:
    """The figures of a simulated candidate: intervals are ± `…error_s`."""
    if evidence is None:
        return {"value_s": None, "error_s": None, "apart_s": None, "apart_error_s": None}
    return {
        "value_s": float(evidence.value_s[k]),
        "error_s": float(evidence.error_s[k]),
        "apart_s": float(evidence.apart_s[k]),
        "apart_error_s": float(evidence.apart_error_s[k]),
    }
