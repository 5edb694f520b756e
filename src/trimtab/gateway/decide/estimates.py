"""How long requests take: per class and node type, learned from what was served.

Seconds = fixed + unit × units, by least squares over the past with exponential forgetting. Until a type has
shown enough, it is what the class has shown on all types; before that, a prior by kind of endpoint.
"""

from __future__ import annotations

from typing import Final

from trimtab.gateway.model import Kind

ClassKey = tuple[str, Kind]  # model and kind

FORGET: Final = 0.99  # weight of the past at each observation: about the last hundred count
ENOUGH: Final = 4.0  # observations of a type until its own fit counts
LEAST_S: Final = 1e-4
SOLVED_EACH: Final = 32.0  # the first observations count at once
SOLVE_EVERY: Final = 4.0  # later ones so many at a time

_PRIOR: Final[dict[Kind, tuple[float, float]]] = {  # seconds, seconds per unit; middling GPUs
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


class Fit:
    """A line through (units, seconds), not below zero anywhere; O(1) per observation."""

    __slots__ = ("_d", "_u", "_ud", "_uu", "_w", "fixed_s", "n", "unit_s")

    def __init__(self, fixed_s: float, unit_s: float) -> None:
        self.fixed_s, self.unit_s = fixed_s, unit_s
        self.n = 0.0
        self._w = self._u = self._d = self._uu = self._ud = 0.0

    def add(self, units: float, seconds: float) -> bool:
        """One request of so many units took so long; returns whether the line is another now."""
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


class Estimates:
    """Of all classes and types of nodes. Fits are kept through reloads."""

    def __init__(self) -> None:
        self._of_type: dict[tuple[ClassKey, str], Fit] = {}
        self._of_class: dict[ClassKey, Fit] = {}

    def observe(
        self, key: ClassKey, type_name: str, units: float, seconds: float
    ) -> tuple[float, float] | None:
        """A request took so long on a node of this type; returns the estimate that now holds there.

        None = the one that held before.
        """
        fit = self._of_type.get((key, type_name))
        if fit is None:
            fit = self._of_type[key, type_name] = Fit(0.0, 0.0)
        if not fit.add(units, seconds):
            return None
        self._class_fit(key).add(units, seconds)  # a sample will do for types yet unseen
        return (fit.fixed_s, fit.unit_s) if fit.n >= ENOUGH else self.of(key, type_name)

    def of(self, key: ClassKey, type_name: str) -> tuple[float, float]:
        """Seconds, and seconds per unit."""
        own = self._of_type.get((key, type_name))
        fit = own if own is not None and own.n >= ENOUGH else self._class_fit(key)
        return fit.fixed_s, fit.unit_s

    def _class_fit(self, key: ClassKey) -> Fit:
        fit = self._of_class.get(key)
        if fit is None:
            fit = self._of_class[key] = Fit(*_PRIOR.get(key[1], (0.1, 0.01)))
        return fit
