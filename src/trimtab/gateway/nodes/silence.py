"""Silence: a node of which bytes are overdue is suspect and gets no new work until it gives a sign of life.

The age of a node is the time since its last byte, whoever it was for. It is held against what was predicted
for the attempts in flight: a first byte is due after the predicted service time, corrected by what this
class of requests has shown on this type of node; the next byte of a stream after what its streams have
shown. So a long prefill is no freeze, and a node that answers anything at all is none either.

*Source* of the allowance: mean + 4 mean deviations, as TCP's retransmission timer (V. Jacobson, M. Karels,
SIGCOMM 1988; RFC 6298). A node that passes a check while it is suspect was only slow: its allowance is
doubled until its next byte. One that passes the check it is asked for when bytes are overdue is not even
withheld: a request that takes longer than any before is no freeze. One that gives no sign of life for a
while more is taken for frozen: what it has not begun to answer moves to other nodes, as far as it may be
sent twice.
Time in which this process itself did not run is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.condition import Hold
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.signals import Answer, Judge


@dataclass(frozen=True, slots=True)
class SilenceOptions:
    """How long is too long."""

    least_s: float = 0.5  # a shorter silence means nothing
    unseen_factor: float = 3.0  # times the prediction, while a class has shown nothing
    unpredicted_s: float = 30.0  # without a prediction
    gain: float = 0.125  # of the running means
    deviations: float = 4.0
    gap_factor: float = 10.0  # times the mean gap of a stream
    withheld_after_s: float = 0.2  # of being overdue without a byte and without passing the check
    frozen_after_s: float = 1.0  # the same


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
class _Kind:
    """What a class of requests has shown on a type of node."""

    first_byte: _Mean = field(default_factory=_Mean)  # relative to the prediction, where there is one
    gap_s: _Mean = field(default_factory=_Mean)


_NEVER_S = float("inf")
_Open = tuple[Exchange, float]  # and the prediction when the attempt began


@dataclass(slots=True)
class _Watch:
    """What one node owes."""

    node: Node
    open: dict[Attempt, _Open] = field(default_factory=dict)  # in flight, oldest first
    patience: float = 1.0
    heard_s: float = float("-inf")  # its last byte when it was last looked at
    doubted_s: float = _NEVER_S  # since when it is overdue; inf = it is not


class Silence(Judge):
    """Judges nodes by what does not come. `doubt(node)` asks for a check at once."""

    def __init__(
        self,
        fleet: Fleet,
        options: SilenceOptions | None = None,
        doubt: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self._fleet, self._options, self._doubt = fleet, options or SilenceOptions(), doubt
        self._gain = self._options.gain
        self._watches: dict[int, _Watch] = {}
        self._kinds: dict[tuple[str, int, bool], _Kind] = {}

    def start(self) -> None:
        """Look at all nodes from now on, at every beat of the pulse."""
        if self._beat not in self._fleet.pulse.on_beat:
            self._fleet.pulse.on_beat.append(self._beat)

    def close(self) -> None:
        """Look no more. It can be started again."""
        if self._beat in self._fleet.pulse.on_beat:
            self._fleet.pulse.on_beat.remove(self._beat)

    def began(self, exchange: Exchange, attempt: Attempt) -> None:
        """A judge's call."""
        node = attempt.node
        watch = self._watches.get(node.idx) or self._watch(node)
        watch.open[attempt] = (exchange, exchange.estimate_s)

    def answered(self, answers: Sequence[Answer]) -> None:
        """A judge's call."""
        watches, kinds, gain = self._watches, self._kinds, self._gain
        for exchange, attempt in answers:
            node, facts = attempt.node, exchange.facts
            watch = watches.get(node.idx)  # none for a node that was removed before it had ended
            opened = None if watch is None else watch.open.pop(attempt, None)
            if opened is None:
                continue
            estimate_s, is_stream = opened[1], facts is not None and facts.stream
            kind = kinds.get((node.type_name, exchange.class_idx, is_stream)) or self._kind(node, exchange)
            first_s = attempt.first_byte_s or attempt.ended_s
            if estimate_s > 0.0:
                kind.first_byte.add((first_s - attempt.begun_s) / estimate_s, gain)
            if is_stream and (chunks := exchange.streamed_chunks) > 1:
                kind.gap_s.add((attempt.ended_s - first_s) / (chunks - 1), gain)

    def lost(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A judge's call."""
        self._close(attempt)

    def left(self, exchange: Exchange, attempt: Attempt) -> None:
        """A judge's call."""
        self._close(attempt)

    def forget(self, node: Node) -> None:
        """A judge's call."""
        self._watches.pop(node.idx, None)

    def reached(self, node: Node) -> None:
        """It passed a check: it lives. If it was doubted it gets more patience, until its next byte."""
        watch = self._watches.get(node.idx)
        if watch is None or watch.doubted_s == _NEVER_S:
            return
        watch.patience = min(1024.0, watch.patience * 2)
        self._trust(watch)

    def is_within_prediction(self, node: Node) -> bool:
        """Whether it works on something, and nothing of it is overdue."""
        watch = self._watches.get(node.idx)
        if watch is None or not watch.open:
            return False
        return self.overdue_s(node, self._fleet.loop.time()) <= 0

    def age_s(self, node: Node, now_s: float) -> float:
        """Seconds without a byte while it owed some and this process ran; 0 when it owes nothing."""
        watch = self._watches.get(node.idx)
        if watch is None or not watch.open:
            return 0.0
        oldest_s = next(iter(watch.open)).begun_s
        return max(0.0, now_s - max(oldest_s, node.last_byte_s, self._fleet.pulse.since_s))

    def overdue_s(self, node: Node, now_s: float) -> float:
        """By how much the most overdue byte is late; negative = nothing is."""
        watch = self._watches.get(node.idx)
        if watch is None or self.age_s(node, now_s) < self._options.least_s:
            return float("-inf")
        late_s = (self._late_s(attempt, opened, watch, now_s) for attempt, opened in watch.open.items())
        return max(late_s, default=float("-inf"))

    def look(self, now_s: float) -> None:
        """Ask who is overdue, and hold it if it does not answer; give up what a frozen node has."""
        for watch in list(self._watches.values()):  # every change may start requests, on nodes new to this
            node = watch.node
            if node.last_byte_s > watch.heard_s:
                watch.heard_s, watch.patience = node.last_byte_s, 1.0
                self._trust(watch)
            if not watch.open:
                if not self._is_suspect(node):
                    watch.doubted_s = _NEVER_S
            elif watch.doubted_s < _NEVER_S:
                self._go_on_doubting(watch, now_s)
            elif self.overdue_s(node, now_s) > 0:
                watch.doubted_s = now_s
                self._doubt(node)

    def _close(self, attempt: Attempt) -> _Open | None:
        watch = self._watches.get(attempt.node.idx)  # none for a node that was removed before it had ended
        return None if watch is None else watch.open.pop(attempt, None)

    def _trust(self, watch: _Watch) -> None:
        watch.doubted_s = _NEVER_S
        self._fleet.release(watch.node, Hold.SILENT)

    def _go_on_doubting(self, watch: _Watch, now_s: float) -> None:
        """It has given no sign of life since it became overdue."""
        node, is_suspect = watch.node, self._is_suspect(watch.node)
        for_s = now_s - max(watch.doubted_s, self._fleet.pulse.since_s)
        if not is_suspect and self.overdue_s(node, now_s) <= 0:  # what was overdue has left
            watch.doubted_s = _NEVER_S
        elif not is_suspect and for_s >= self._options.withheld_after_s:
            age_s = self.age_s(node, now_s)
            self._fleet.hold(node, Hold.SILENT, f"silent for {age_s:.3g} s with {len(watch.open)} in flight")
        elif for_s >= self._options.frozen_after_s:
            self._move_all(watch)

    def _move_all(self, watch: _Watch) -> None:
        """What may not move now, for want of retries or of another node, is asked again at the next look."""
        for attempt, (exchange, _) in list(watch.open.items()):
            if attempt.first_byte_s == 0.0:
                exchange.move(attempt)

    def _is_suspect(self, node: Node) -> bool:
        return Hold.SILENT in self._fleet.condition(node).holds

    def _late_s(self, attempt: Attempt, opened: _Open, watch: _Watch, now_s: float) -> float:
        exchange, estimate_s = opened
        kind = self._kind(watch.node, exchange)
        if attempt.first_byte_s == 0.0:
            allowed_s = self._first_byte_s(kind, estimate_s)
            since_s = max(attempt.begun_s, attempt.sent_s, self._fleet.pulse.since_s)
        else:
            allowed_s = self._gap_s(kind, estimate_s)
            since_s = max(attempt.first_byte_s, watch.node.last_byte_s, self._fleet.pulse.since_s)
        allowed_s = max(self._options.least_s, allowed_s) * watch.patience
        return now_s - since_s - allowed_s

    def _first_byte_s(self, kind: _Kind, estimate_s: float) -> float:
        options, shown = self._options, kind.first_byte
        if estimate_s <= 0:
            return options.unpredicted_s
        if shown.n == 0:
            return estimate_s * options.unseen_factor
        return estimate_s * (shown.mean + options.deviations * shown.deviation)

    def _gap_s(self, kind: _Kind, estimate_s: float) -> float:
        options, shown = self._options, kind.gap_s
        if shown.n == 0:
            return self._first_byte_s(kind, estimate_s)
        return options.gap_factor * (shown.mean + options.deviations * shown.deviation)

    def _kind(self, node: Node, exchange: Exchange) -> _Kind:
        facts = exchange.facts
        is_stream = facts is not None and facts.stream
        key = (node.type_name, exchange.class_idx, is_stream)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
        return kind

    def _watch(self, node: Node) -> _Watch:
        watch = self._watches.get(node.idx)
        if watch is None:
            watch = self._watches[node.idx] = _Watch(node)
        return watch

    def _beat(self) -> bool:
        self.look(self._fleet.loop.time())
        return False  # it beats on while anything is in flight: the signals see to that
