"""Estimates of service time and of output, learned from served requests.

`ServiceEstimates.learn` is the one place that updates them. The dispatcher calls it (by `feedback.py`) for
every request that ends with a whole answer; the result goes into the tables of every pool
(`PolicyPools.set_estimate`).

Per class of requests and type of nodes, seconds = fixed + unit × units, by least squares with exponential
forgetting. A type of nodes with few observations uses the fit of its class over all types; a class without
observations uses a prior for its kind of endpoint.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trimtab.gateway.api.units import OutputEstimate, predictable, used
from trimtab.gateway.model import Exchange, Kind

ClassKey = tuple[str, Kind]  # model and kind

FORGET: Final = 0.99  # weight of the past at each observation: about the last hundred count
ENOUGH: Final = 4.0  # observations of a type until its own fit counts
LEAST_S: Final = 1e-4
SOLVED_EACH: Final = 32.0  # every one of the first observations updates the line
SOLVE_EVERY: Final = 4.0  # later ones update it in groups of this size

_PRIOR: Final[dict[Kind, tuple[float, float]]] = {  # seconds, seconds per unit, on a middling GPU
    Kind.CHAT: (0.1, 0.02),
    Kind.COMPLETION: (0.1, 0.02),
    Kind.RESPONSE: (0.1, 0.02),
    Kind.MESSAGES: (0.1, 0.02),
    Kind.EMBEDDING: (0.02, 0.01),
    Kind.IMAGE: (0.5, 0.1),
    Kind.SPEECH: (0.2, 0.1),
    Kind.TRANSCRIPTION: (0.2, 0.05),
    Kind.VIDEO: (5.0, 0.5),
    Kind.REALTIME: (60.0, 0.0),
}


class RequestClass:
    """A class of requests: a model and a kind. `idx` is its row in every pool's tables."""

    __slots__ = ("idx", "key", "kind", "output")

    def __init__(self, key: ClassKey, idx: int) -> None:
        self.key, self.kind, self.idx = key, key[1], idx
        self.output = OutputEstimate()


class NewEstimate(NamedTuple):
    """The estimate that holds from now on for a class on nodes of a type."""

    type_name: str
    fixed_s: float
    unit_s: float


class Fit:
    """A line through (units, seconds), nowhere below zero; O(1) per observation."""

    __slots__ = ("_d", "_u", "_ud", "_uu", "_w", "fixed_s", "n", "unit_s")

    def __init__(self, fixed_s: float, unit_s: float) -> None:
        self.fixed_s, self.unit_s = fixed_s, unit_s
        self.n = 0.0
        self._w = self._u = self._d = self._uu = self._ud = 0.0

    def add(self, units: float, seconds: float) -> bool:
        """Add an observation; returns whether the line has changed."""
        self.n = n = self.n + 1.0
        self._w = FORGET * self._w + 1.0
        self._u = FORGET * self._u + units
        self._d = FORGET * self._d + seconds
        self._uu = FORGET * self._uu + units * units
        self._ud = FORGET * self._ud + units * seconds
        if n >= SOLVED_EACH and n % SOLVE_EVERY:
            return False
        self._solve()
        return True

    def _solve(self) -> None:
        spread = self._w * self._uu - self._u * self._u
        if spread > 1e-9 * self._uu * self._w:
            unit_s = (self._w * self._ud - self._u * self._d) / spread
            fixed_s = (self._d - unit_s * self._u) / self._w
            if unit_s >= 0.0 and fixed_s >= 0.0:
                self.fixed_s, self.unit_s = max(fixed_s, LEAST_S), unit_s
                return
            if fixed_s < 0.0:
                self.fixed_s, self.unit_s = LEAST_S, self._ud / self._uu
                return
            self.fixed_s, self.unit_s = max(self._d / self._w, LEAST_S), 0.0
            return
        self.fixed_s, self.unit_s = LEAST_S, max(self._d / self._u, 0.0)  # one size only: through the origin


class ServiceEstimates:
    """The fits of all classes and types of nodes. A reload keeps them."""

    def __init__(self) -> None:
        self._of_type: dict[tuple[ClassKey, str], Fit] = {}
        self._of_class: dict[ClassKey, Fit] = {}

    def learn(
        self, exchange: Exchange, of: RequestClass, seconds: float, *, is_timed: bool
    ) -> NewEstimate | None:
        """Learn from a request of class `of` that took so long; returns the new estimate, None = unchanged.

        Updates the class's output estimate and the exchange's actual units. Seconds are learned for the units
        that a request shows before it is served, but for its output: tokenizers count prompts otherwise.
        `is_timed`: whether the duration counts; this process may have been stalled meanwhile.
        """
        facts, usage, node = exchange.facts, exchange.usage, exchange.attempts[-1].node
        units = exchange.units
        if facts is not None and usage is not None:
            exchange.actual_units = used(facts, of.kind, usage)
            units = predictable(facts, of.kind, usage)
            if usage.completion_tokens:
                of.output.observe(facts.max_tokens, usage.completion_tokens / facts.answers)
        if not is_timed or seconds <= 0.0:
            return None
        type_name = node.type_name or node.name
        changed = self.observe(of.key, type_name, units, seconds)
        return None if changed is None else _new(NewEstimate, (type_name, *changed))

    def observe(
        self, key: ClassKey, type_name: str, units: float, seconds: float
    ) -> tuple[float, float] | None:
        """A request took so long on a node of this type; returns the new estimate, None = unchanged."""
        fit = self._of_type.get((key, type_name))
        if fit is None:
            fit = self._of_type[key, type_name] = Fit(0.0, 0.0)
        if not fit.add(units, seconds):
            return None
        self._class_fit(key).add(units, seconds)  # a sample is enough for types without observations
        return (fit.fixed_s, fit.unit_s) if fit.n >= ENOUGH else self.of(key, type_name)

    def observed(self, key: ClassKey, type_name: str) -> float:
        """How many requests of a class nodes of a type have served."""
        own = self._of_type.get((key, type_name))
        return 0.0 if own is None else own.n

    def of(self, key: ClassKey, type_name: str) -> tuple[float, float]:
        """Fixed seconds, and seconds per unit."""
        own = self._of_type.get((key, type_name))
        fit = own if own is not None and own.n >= ENOUGH else self._class_fit(key)
        return fit.fixed_s, fit.unit_s

    def _class_fit(self, key: ClassKey) -> Fit:
        fit = self._of_class.get(key)
        if fit is None:
            fit = self._of_class[key] = Fit(*_PRIOR.get(key[1], (0.1, 0.01)))
        return fit


_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
