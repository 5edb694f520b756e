"""Estimates that sites learn together: output lengths, seconds of service, demand of resources.

All are linear least squares where a number meets at most its two neighbours: output tokens at the knots of
a curve over the prompt's length, seconds at 0 and at `UNITS` units of work, the mean demand. So a site's data
is a few short arrays, and a local epoch is a sweep of coordinate descent over them.

Sources: McMahan et al., AISTATS 2017, algorithm 1 (FedAvg: local epochs from the common numbers, then a
weighted mean); T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, algorithm 2
(FedProx: `mu` / 2 × |w − w_t|² is added to what each site minimises).

Deviations: the local solver is coordinate descent on the whole of a site's data (B = ∞), in place of
stochastic gradient descent; numbers are held at 0 or more, and knots beside each other together by the weight
of a few rows (P. Eilers, B. Marx, "Flexible smoothing with B-splines and penalties", Statistical Science
11(2), 1996), so that a knot with hardly a row does not run away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.artifact import Artifact
from trimtab.domain.cluster import RESOURCES
from trimtab.domain.learned_estimates import ANY, KNOTS, LearnedEstimates, place
from trimtab.domain.output_estimate import FIRST_OUTPUT_TOKENS, LEARNED_WEIGHT
from trimtab.errors import UsageError
from trimtab.learn.federated.aggregation import Update

Floats = NDArray[np.float64]

UNITS: Final = 1000.0  # of work: where the second number of a line of service lies
ESTIMATES_FILE: Final = "learned.safetensors"
TOKENS: Final = 256.0  # one step of a length, so that updates of lengths and of seconds are of one size
SMOOTH_ROWS: Final = 2.0  # rows that hold two knots beside each other together


@dataclass(frozen=True)
class Layout:
    """Where each number lies: for each class its curve, its lines by type of nodes, its demand."""

    classes: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def of_class(self) -> int:
        """Numbers of one class."""
        return KNOTS + 2 * len(self.types) + len(RESOURCES)

    @property
    def width(self) -> int:
        """Numbers of all classes."""
        return len(self.classes) * self.of_class

    def curve(self, c: int) -> int:
        """Where the curve of a class begins."""
        return c * self.of_class

    def line(self, c: int, g: int) -> int:
        """Where the two numbers of a class on a type lie."""
        return c * self.of_class + KNOTS + 2 * g

    def demand(self, c: int) -> int:
        """Where the demand of a class begins."""
        return c * self.of_class + KNOTS + 2 * len(self.types)


class Moments(NamedTuple):
    """A site's rows, as what least squares need of them: arrays of the layout's width.

    The loss is ½ Σ square × w² + Σ beside × w × w' − Σ target × w over its numbers w, w' the next of each.
    """

    square: Floats
    beside: Floats
    target: Floats
    rows: Floats  # behind each number

    @classmethod
    def empty(cls, layout: Layout) -> Moments:
        """Of no rows."""
        return cls(*(np.zeros(layout.width) for _ in cls._fields))

    def add(self, at: NDArray[np.integer], part: Floats, values: Floats) -> None:
        """Add rows: value = (1 − part) × w[at] + part × w[at + 1], [rows] each."""
        here, width = 1.0 - part, len(self.square)
        for where, by in ((at, here), (at + 1, part)):
            touched = by != 0.0  # a number at the end has no next
            self.square[:] += np.bincount(where[touched], (by * by)[touched], width)
            self.target[:] += np.bincount(where[touched], (by * values)[touched], width)
            self.rows[:] += np.bincount(where[touched], np.abs(by)[touched], width)
        self.beside[:] += np.bincount(at, here * part, width)

    def smooth(self, layout: Layout) -> None:
        """Hold knots with rows beside each other together."""
        for c in range(len(layout.classes)):
            begin = layout.curve(c)
            known = self.rows[begin : begin + KNOTS] > 0.0
            at = begin + np.flatnonzero(known[:-1] & known[1:])
            self.square[at] += SMOOTH_ROWS
            self.square[at + 1] += SMOOTH_ROWS
            self.beside[at] -= SMOOTH_ROWS


def curve_places(prompt_tokens: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Knot and part of each prompt, [rows] both; see `learned_estimates.place`."""
    found = [place(tokens) for tokens in prompt_tokens.tolist()]
    return np.array([k for k, _ in found], np.int64), np.array([part for _, part in found])


def descended(moments: Moments, begin: Floats, sweeps: int, mu: float) -> Floats:
    """The numbers after so many sweeps of coordinate descent from `begin`, [width].

    `mu`: rows by which the beginning holds each number; numbers without rows stay.
    """
    square, beside, target = (moments[k].tolist() for k in range(3))
    w, held = begin.tolist(), begin.tolist()
    moving = np.flatnonzero(moments.square > 0.0).tolist()
    last = len(w) - 1
    for _ in range(sweeps):
        for j in moving:
            pull = target[j] + mu * held[j]
            if j:
                pull -= beside[j - 1] * w[j - 1]
            if j < last:
                pull -= beside[j] * w[j + 1]
            w[j] = max(0.0, pull / (square[j] + mu))
    return np.array(w)


@dataclass(frozen=True)
class EstimatesProblem:
    """Estimates of classes on types of nodes, by FedAvg or, with `mu` above 0, FedProx.

    Attributes:
        classes: of requests; "*" takes all that no other name fits.
        types: of nodes whose seconds of service are learned.
        n_rounds: rounds.
        sweeps: local epochs of a round.
        mu: of FedProx, in rows: how many rows hold a site's number at the common one.
    """

    classes: tuple[str, ...] = (ANY,)
    types: tuple[str, ...] = ()
    n_rounds: int = 20
    sweeps: int = 2
    mu: float = 0.0

    @property
    def layout(self) -> Layout:
        """Where each number lies."""
        return Layout(self.classes, self.types)

    def told(self) -> dict[str, Any]:
        """As `Problem.told`."""
        return {"kind": "estimates", **asdict(self), "classes": [*self.classes], "types": [*self.types]}

    def rounds(self) -> int:
        """As `Problem.rounds`."""
        return self.n_rounds

    def width(self, history: Sequence[Update]) -> int:
        """As `Problem.width`."""
        return self.layout.width

    def numbers(self, history: Sequence[Update]) -> Floats:
        """The common numbers after these rounds, [width]."""
        layout = self.layout
        w = np.zeros(layout.width)
        for c in range(len(self.classes)):
            begin = layout.curve(c)
            w[begin : begin + KNOTS] = FIRST_OUTPUT_TOKENS / TOKENS
        for update in history:
            w = np.maximum(0.0, w + update.values)
        return w

    def ask(self, history: Sequence[Update]) -> Artifact:
        """As `Problem.ask`: the common numbers."""
        return Artifact("ask", {"numbers": self.numbers(history)})

    def result(self, history: Sequence[Update], provenance: Mapping[str, Any]) -> tuple[str, bytes]:
        """As `Problem.result`."""
        found = self.estimates(self.numbers(history), history[-1].weights, provenance)
        return ESTIMATES_FILE, found.artifact("learned").content()

    def estimates(self, w: Floats, rows: Floats, provenance: Mapping[str, Any]) -> LearnedEstimates:
        """The numbers [width] with the rows behind them as estimates; curves go on where there are none."""
        layout, c_range, g_range = self.layout, range(len(self.classes)), range(len(self.types))
        curves = [slice(layout.curve(c), layout.curve(c) + KNOTS) for c in c_range]
        lines = [[layout.line(c, g) for g in g_range] for c in c_range]
        demands = [slice(layout.demand(c), layout.demand(c) + len(RESOURCES)) for c in c_range]
        size = len(self.classes), len(self.types)
        service, service_rows = np.zeros((*size, 2)), np.zeros(size)
        for c in c_range:
            for g, at in enumerate(lines[c]):
                unit_s = max(0.0, w[at + 1] - w[at]) / UNITS
                service[c, g], service_rows[c, g] = (w[at], unit_s), rows[at]
        return LearnedEstimates(
            self.classes,
            self.types,
            lengths=np.array([TOKENS * _continued(w[each], rows[each]) for each in curves]),
            service=service,
            demand=np.array([w[each] for each in demands]),
            rows={
                "lengths": np.array([rows[each] for each in curves]),
                "service": service_rows,
                "demand": np.array([rows[each] for each in demands]),
            },
            provenance=provenance,
        )

    def numbers_of(self, learned: LearnedEstimates) -> tuple[Floats, Floats]:
        """The other way round: numbers and rows, [width] both. Raises UsageError for other classes."""
        layout = self.layout
        if (learned.classes, learned.types) != (self.classes, self.types):
            raise UsageError(
                "is of other classes or types",
                file=learned.path or ESTIMATES_FILE,
                value=[learned.classes, learned.types],
                expected=f"{[self.classes, self.types]}",
            )
        w, rows = np.zeros(layout.width), np.zeros(layout.width)
        for c in range(len(self.classes)):
            curve, demand = layout.curve(c), layout.demand(c)
            for to, key, at, width in (
                (TOKENS, "lengths", curve, KNOTS),
                (1.0, "demand", demand, len(RESOURCES)),
            ):
                w[at : at + width] = getattr(learned, key)[c] / to
                rows[at : at + width] = learned.rows[key][c]
            for g in range(len(self.types)):
                at, (fixed_s, unit_s) = layout.line(c, g), learned.service[c, g]
                w[at], w[at + 1] = fixed_s, fixed_s + UNITS * unit_s
                rows[at : at + 2] = learned.rows["service"][c, g]
        return w, rows


def _continued(w: Floats, rows: Floats) -> Floats:
    known = np.flatnonzero(rows > 0.0)
    return np.interp(np.arange(len(w)), known, w[known]) if len(known) else w


@dataclass(frozen=True)
class EstimatesSite:
    """A site that answers from its moments."""

    problem: EstimatesProblem
    moments: Moments

    def answer(self, ask: Artifact) -> Update:
        """As `Site.answer`: the change by the local epochs. Raises UsageError for another shape."""
        begin = ask.floats("numbers", (self.problem.layout.width,))
        own = descended(self.moments, begin, self.problem.sweeps, self.problem.mu)
        return Update(own - begin, self.moments.rows)

    def own_estimates(self, learned: LearnedEstimates) -> LearnedEstimates:
        """The site's own: from what all learned, by as much as its rows say."""
        problem = self.problem
        common, rows = problem.numbers_of(learned)
        own = descended(self.moments, common, 8 * problem.sweeps, LEARNED_WEIGHT)
        provenance = {**learned.provenance, "own rows": float(self.moments.rows.sum())}
        return problem.estimates(own, np.maximum(rows, self.moments.rows), provenance)

    def own_content(self, content: bytes) -> bytes:
        """`own_estimates` of a file's content, as such. Raises UsageError for a file of something else."""
        learned = LearnedEstimates.of(Artifact.parsed(content, ESTIMATES_FILE))
        return self.own_estimates(learned).artifact("own").content()
