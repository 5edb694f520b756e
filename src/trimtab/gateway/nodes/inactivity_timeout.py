"""Inactivity timeout: a node whose bytes are overdue is suspect and gets no new work until it shows activity.

A node's inactivity is the time since its last byte for any request. The rule compares it with the prediction
for the attempts in flight. A first byte is due after the predicted service time, corrected by what this
class of requests has seen on this type of node; the next byte of a stream is due after the gaps that its
streams have seen. So a long prefill is no timeout, and neither is a node that answers any request.

*Source* of the allowance: mean + 4 mean deviations, as TCP's retransmission timer (V. Jacobson, M. Karels,
SIGCOMM 1988; RFC 6298). When bytes are overdue the rule asks for a health check. A node that passes it is
only slow: it keeps its work, and its allowance doubles until its next byte. A node that stays without any
sign of activity is frozen: requests that it has not begun to answer move to other nodes, where a second
attempt is allowed. Time in which this process itself was stalled does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_rule import HealthRule, Success
from trimtab.gateway.nodes.node_state import Hold


@dataclass(frozen=True, slots=True)
class InactivityOptions:
    """When a node counts as inactive."""

    min_s: float = 0.5  # shorter times are no inactivity
    unseen_factor: float = 3.0  # times the prediction, while a class has no observations
    unpredicted_s: float = 30.0  # without a prediction
    gain: float = 0.125  # of the running means
    deviations: float = 4.0
    gap_factor: float = 10.0  # times the mean gap of a stream
    withheld_after_s: float = 0.2  # overdue without a byte and without a passed check
    frozen_after_s: float = 1.0  # likewise, until its requests move


@dataclass(slots=True)
class _Mean:
    """A running mean with its mean deviation."""

    mean: float = 0.0
    deviation: float = 0.0
    n: int = 0

    def add(self, value: float, gain: float) -> None:
        if self.n == 0:
            self.mean, self.deviation = value, value / 2
        else:
            off = value - self.mean
            self.deviation += gain * ((off if off > 0.0 else -off) - self.deviation)
            self.mean += gain * off
        self.n += 1


@dataclass(slots=True)
class _Observed:
    """Observations of a class of requests on a type of node."""

    first_byte: _Mean = field(default_factory=_Mean)  # relative to the prediction, where there is one
    gap_s: _Mean = field(default_factory=_Mean)


_NEVER_S = float("inf")
_Open = tuple[Exchange, float]  # and the prediction when the attempt began


@dataclass(slots=True)
class _NodeActivity:
    """The open attempts of one node, and since when one is overdue."""

    node: Node
    open: dict[Attempt, _Open] = field(default_factory=dict)  # in flight, oldest first
    allowance_factor: float = 1.0
    last_byte_s: float = float("-inf")  # the node's last byte at the latest check
    overdue_since_s: float = _NEVER_S  # inf = nothing is overdue


class InactivityTimeout(HealthRule):
    """Holds nodes whose bytes are overdue. `request_check(node)` starts a health check at once."""

    def __init__(
        self,
        fleet: Fleet,
        options: InactivityOptions | None = None,
        request_check: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self._fleet, self._options, self._request_check = fleet, options or InactivityOptions(), request_check
        self._gain = self._options.gain
        self._activities: dict[int, _NodeActivity] = {}
        self._observed: dict[tuple[str, int, bool], _Observed] = {}

    def start(self) -> None:
        """Check all nodes from now on, at every beat of the stall_detector."""
        if self._beat not in self._fleet.stall_detector.on_beat:
            self._fleet.stall_detector.on_beat.append(self._beat)

    def close(self) -> None:
        """Stop checking. `start` begins again."""
        if self._beat in self._fleet.stall_detector.on_beat:
            self._fleet.stall_detector.on_beat.remove(self._beat)

    def attempt_started(self, exchange: Exchange, attempt: Attempt) -> None:
        """A HealthRule method."""
        node = attempt.node
        activity = self._activities.get(node.idx) or self._activity(node)
        activity.open[attempt] = (exchange, exchange.estimate_s)

    def attempts_succeeded(self, successes: Sequence[Success]) -> None:
        """A HealthRule method."""
        activities, observed, gain = self._activities, self._observed, self._gain
        for exchange, attempt in successes:
            node, facts = attempt.node, exchange.facts
            activity = activities.get(node.idx)  # none if the node was removed meanwhile
            predicted = None if activity is None else activity.open.pop(attempt, None)
            if predicted is None:
                continue
            estimate_s, is_stream = predicted[1], facts is not None and facts.stream
            key = node.type_name, exchange.class_idx, is_stream
            observed_here = observed.get(key) or self._observed_of(node, exchange)
            first_s = attempt.first_byte_s or attempt.ended_s
            if estimate_s > 0.0:
                observed_here.first_byte.add((first_s - attempt.begun_s) / estimate_s, gain)
            if is_stream and (chunks := exchange.streamed_chunks) > 1:
                observed_here.gap_s.add((attempt.ended_s - first_s) / (chunks - 1), gain)

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A HealthRule method."""
        self._close(attempt)

    def attempt_inconclusive(self, exchange: Exchange, attempt: Attempt) -> None:
        """A HealthRule method."""
        self._close(attempt)

    def node_removed(self, node: Node) -> None:
        """A HealthRule method."""
        self._activities.pop(node.idx, None)

    def check_passed(self, node: Node) -> None:
        """The node passed a health check. If it was overdue its allowance doubles, until its next byte."""
        activity = self._activities.get(node.idx)
        if activity is None or activity.overdue_since_s == _NEVER_S:
            return
        activity.allowance_factor = min(1024.0, activity.allowance_factor * 2)
        self._clear(activity)

    def is_within_prediction(self, node: Node) -> bool:
        """Whether the node has open attempts and none is overdue."""
        activity = self._activities.get(node.idx)
        if activity is None or not activity.open:
            return False
        return self.overdue_s(node, self._fleet.loop.time()) <= 0

    def age_s(self, node: Node, now_s: float) -> float:
        """Seconds without a byte while attempts were open and this process ran; 0 = none is open."""
        activity = self._activities.get(node.idx)
        if activity is None or not activity.open:
            return 0.0
        oldest_s = next(iter(activity.open)).begun_s
        return max(0.0, now_s - max(oldest_s, node.last_byte_s, self._fleet.stall_detector.since_s))

    def overdue_s(self, node: Node, now_s: float) -> float:
        """By how much the most overdue byte is late; negative = nothing is overdue."""
        activity = self._activities.get(node.idx)
        if activity is None or self.age_s(node, now_s) < self._options.min_s:
            return float("-inf")
        late_s = (self._late_s(*one, activity, now_s) for one in activity.open.items())
        return max(late_s, default=float("-inf"))

    def check(self, now_s: float) -> None:
        """Request checks of overdue nodes, hold inactive ones, move the requests of frozen ones."""
        for activity in list(self._activities.values()):  # a change may start requests on further nodes
            node = activity.node
            if node.last_byte_s > activity.last_byte_s:
                activity.last_byte_s, activity.allowance_factor = node.last_byte_s, 1.0
                self._clear(activity)
            if not activity.open:
                if not self._is_suspect(node):
                    activity.overdue_since_s = _NEVER_S
            elif activity.overdue_since_s < _NEVER_S:
                self._escalate(activity, now_s)
            elif self.overdue_s(node, now_s) > 0:
                activity.overdue_since_s = now_s
                self._request_check(node)

    def _close(self, attempt: Attempt) -> _Open | None:
        activity = self._activities.get(attempt.node.idx)  # none if the node was removed meanwhile
        return None if activity is None else activity.open.pop(attempt, None)

    def _clear(self, activity: _NodeActivity) -> None:
        activity.overdue_since_s = _NEVER_S
        self._fleet.release(activity.node, Hold.INACTIVE)

    def _escalate(self, activity: _NodeActivity, now_s: float) -> None:
        """The node has shown no activity since it became overdue."""
        node, is_suspect = activity.node, self._is_suspect(activity.node)
        for_s = now_s - max(activity.overdue_since_s, self._fleet.stall_detector.since_s)
        if not is_suspect and self.overdue_s(node, now_s) <= 0:  # the overdue attempt has ended
            activity.overdue_since_s = _NEVER_S
        elif not is_suspect and for_s >= self._options.withheld_after_s:
            age_s = self.age_s(node, now_s)
            self._fleet.hold(
                node, Hold.INACTIVE, f"inactive for {age_s:.3g} s with {len(activity.open)} in flight"
            )
        elif for_s >= self._options.frozen_after_s:
            self._move_all(activity)

    def _move_all(self, activity: _NodeActivity) -> None:
        """Move unanswered requests. One without retries or another node stays; the next check tries again."""
        for attempt, (exchange, _) in list(activity.open.items()):
            if attempt.first_byte_s == 0.0:
                exchange.move(attempt)

    def _is_suspect(self, node: Node) -> bool:
        return Hold.INACTIVE in self._fleet.state(node).holds

    def _late_s(self, attempt: Attempt, predicted: _Open, activity: _NodeActivity, now_s: float) -> float:
        exchange, estimate_s = predicted
        observed_here = self._observed_of(activity.node, exchange)
        if attempt.first_byte_s == 0.0:
            allowed_s = self._first_byte_s(observed_here, estimate_s)
            since_s = max(attempt.begun_s, attempt.sent_s, self._fleet.stall_detector.since_s)
        else:
            allowed_s = self._gap_s(observed_here, estimate_s)
            since_s = max(attempt.first_byte_s, activity.node.last_byte_s, self._fleet.stall_detector.since_s)
        allowed_s = max(self._options.min_s, allowed_s) * activity.allowance_factor
        return now_s - since_s - allowed_s

    def _first_byte_s(self, observed_here: _Observed, estimate_s: float) -> float:
        options, seen = self._options, observed_here.first_byte
        if estimate_s <= 0:
            return options.unpredicted_s
        if seen.n == 0:
            return estimate_s * options.unseen_factor
        return estimate_s * (seen.mean + options.deviations * seen.deviation)

    def _gap_s(self, observed_here: _Observed, estimate_s: float) -> float:
        options, seen = self._options, observed_here.gap_s
        if seen.n == 0:
            return self._first_byte_s(observed_here, estimate_s)
        return options.gap_factor * (seen.mean + options.deviations * seen.deviation)

    def _observed_of(self, node: Node, exchange: Exchange) -> _Observed:
        facts = exchange.facts
        is_stream = facts is not None and facts.stream
        key = (node.type_name, exchange.class_idx, is_stream)
        observed_here = self._observed.get(key)
        if observed_here is None:
            observed_here = self._observed[key] = _Observed()
        return observed_here

    def _activity(self, node: Node) -> _NodeActivity:
        activity = self._activities.get(node.idx)
        if activity is None:
            activity = self._activities[node.idx] = _NodeActivity(node)
        return activity

    def _beat(self) -> bool:
        self.check(self._fleet.loop.time())
        return False  # AttemptEvents keeps the beats going while attempts are open
