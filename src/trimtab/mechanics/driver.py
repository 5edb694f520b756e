"""Runs the loop for a host: binds the policy, makes room, hands plans over, names what went wrong."""

from __future__ import annotations

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.errors import PolicyError
from trimtab.domain.kernel import interpreted
from trimtab.domain.options import Options
from trimtab.domain.planning import HISTORY, WAITING, History, checked_plan
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import Plan, View
from trimtab.mechanics.calls import INTERPRET_UP_TO, Calls, Raised, is_ready
from trimtab.mechanics.events import PLAN, push_event
from trimtab.mechanics.facade import facade
from trimtab.mechanics.loop import BAD_DECISION, FULL, RAISED
from trimtab.mechanics.state import new_state


def label_of(policy: Policy, order: Policy) -> str:
    """What tables call this pair: `A`, or `A+B` when B brings the order."""
    name = policy.name or type(policy).__name__
    return name if order is policy else f"{name}+{order.name or type(order).__name__}"


class Driver:
    """One run of one policy. The host decides how far to advance, and what a plan costs."""

    def __init__(
        self,
        cluster: Cluster,
        requests: Requests,
        options: Options,
        policy: Policy,
        order: Policy | None = None,
        *,
        seed: int = 0,
        mode: str = "auto",
        live: bool = False,
    ) -> None:
        self.policy, self.order = policy, order or policy
        self.options, self.label = options, label_of(self.policy, self.order)
        compiled = mode == "compiled" or (
            mode == "auto" and (is_ready(self.policy, self.order) or len(requests) > INTERPRET_UP_TO)
        )
        self.state = new_state(cluster, requests, options, self.policy, self.order, seed, live=live)
        self.compiled = compiled
        self._calls = Calls(self.state, self.policy, self.order, compiled=compiled)
        self._calls.begin()

    @property
    def now_s(self) -> float:
        """Time of the last event."""
        return float(self.state.counts["now_s"][0])

    def advance(self, until_s: float = float("inf"), max_steps: int = 1 << 62) -> int:
        """Let everything happen up to `until_s`; returns one of the loop's codes. Raises PolicyError."""
        while True:
            try:
                code = self._calls.advance(until_s, max_steps)
            except Raised as error:
                raise self._failure(f"raised {error.__cause__!r}", error.serial) from error.__cause__
            if code == FULL:
                self.state = self._calls.enlarge_events()
            elif code in (BAD_DECISION, RAISED):
                answer = int(self.state.counts["answer"][0])
                ranked = self.state.ranking[: max(0, min(answer, 8))].tolist()
                raise self._failure(f"answered {answer} with candidates {ranked}", None)
            else:
                return code

    def _failure(self, what: str, serial: int | None) -> PolicyError:
        request = int(self.state.counts["deciding"][0]) if serial is None else serial
        return PolicyError(f"policy {self.label!r} {what} for request {request} at {self.now_s:.6f} s")

    def view(self, dispatcher: int = 0) -> View:
        """What a dispatcher sees now, as NumPy record arrays."""
        host, nodes, *rest = self.state.views[dispatcher]
        host["now_s"] = self.now_s
        return View(host.view(np.recarray)[0], nodes.view(np.recarray), *rest)

    def history(self) -> History:
        """The recent past, for planning."""
        arrived = int(self.state.counts["arrived"][0])
        past = slice(max(0, arrived - HISTORY), arrived)
        work, rows = self.state.work[past], self.state.requests[past]
        finished = np.where(rows["finish_s"] <= self.now_s, rows["finish_s"], np.nan)
        return History(work["arrival_s"].copy(), work["class_idx"].copy(), work["units"].copy(), finished)

    def waiting(self) -> np.ndarray:
        """The first held requests by queue key, as WORK rows."""
        held = np.flatnonzero(self.state.requests["status"][: int(self.state.counts["arrived"][0])] == 1)
        first = np.argsort(self.state.requests["key"][held], kind="stable")[:WAITING]
        rows: np.ndarray = self.state.work[held[first]]
        return rows

    def make_plan(self) -> Plan | None:
        """Let the policy plan, here and now. Raises PolicyError where it raises or returns no plan."""
        try:
            plan = self.policy.plan(self.view(), self.history(), self.waiting(), None)
        except Exception as error:
            raise PolicyError(
                f"policy {self.label!r} raised {error!r} in plan() at {self.now_s:.6f} s"
            ) from error
        return None if plan is None else checked_plan(plan, len(self.state.nodes))

    def put_in_force(self, plan: Plan) -> None:
        """From now on decisions are made under this plan."""
        self._calls.set_plan(plan)

    def schedule_plan(self, at_s: float) -> None:
        """Make `advance` return PLAN_READY at `at_s`."""
        interpreted(push_event)(facade(self.state), at_s, PLAN, 0, 1)
