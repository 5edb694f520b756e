"""What served requests and reports teach: service and load times, output, and demand of resources.

Service time per class of requests and type of nodes: seconds = fixed + unit × units, by least squares with
exponential forgetting. A type of nodes with few observations uses what other sites learned of it (`learned`
in gateway.yaml), else the fit of its class over all types; a class without observations uses a prior for its
kind of endpoint. `ServiceEstimates.learn` is the one place that updates the fits and the output. The
dispatcher calls it (by `feedback.py`) for every request that ends with a whole answer; the result goes into
the tables of every pool (`PolicyPools.set_estimate`).

Load time of a model or an adapter per type of nodes, from two sources: calls that load an item, which take as
long as the load; and the first answer of a node that did not hold the item, against the answers of nodes that
do. The second is known once warm answers are.

Demand of one request of each class for each resource, from the use that nodes report: use of a node = its
background + Σ over classes of demand × requests in flight, a linear regression with a constant for each node
and demands that are not negative. Sums of products of deviations from each node's own mean leave the
constants out (the within estimator of panel data). Older observations count less and less. The normal
equations are solved by coordinate descent, each coordinate held at 0 or more; for non-negative least squares
that converges to the optimum (Franc, Hlaváč, Navara: "Sequential coordinate-wise algorithm for the
non-negative least squares problem", CAIP 2005; from memory).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict

import numpy as np

from trimtab.domain.cluster import RESOURCES, Floats
from trimtab.domain.learned_estimates import LearnedEstimates, LengthCurve
from trimtab.domain.output_estimate import OutputEstimate
from trimtab.gateway.api.units import MEDIA, predictable, used
from trimtab.gateway.model import Exchange, Kind, Usage

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


_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


class RequestClass:
    """A class of requests: a model and a kind. `idx` is its row in every pool's tables."""

    __slots__ = ("idx", "key", "kind", "output")

    def __init__(self, key: ClassKey, idx: int, curve: LengthCurve | None = None) -> None:
        """`curve`: output tokens that its estimate begins with."""
        self.key, self.kind, self.idx = key, key[1], idx
        self.output = OutputEstimate(curve)


def class_name(key: ClassKey) -> str:
    """The name of a class in views and displays."""
    return f"{key[0]}/{key[1].value}"


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

    @property
    def mean_s(self) -> float:
        """Mean of the seconds observed."""
        return self._d / self._w

    @property
    def slope_s(self) -> float:
        """Seconds per unit; 0 where the observations tell no constant part."""
        return self.unit_s if self.fixed_s > LEAST_S else 0.0

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
        if spread <= 1e-9 * self._uu * self._w:  # one size only: through the origin
            self.fixed_s, self.unit_s = LEAST_S, max(self._d / self._u, 0.0)
            return
        unit_s = (self._w * self._ud - self._u * self._d) / spread
        fixed_s = (self._d - unit_s * self._u) / self._w
        if fixed_s < 0.0:
            fixed_s, unit_s = 0.0, self._ud / self._uu
        elif unit_s < 0.0:
            fixed_s, unit_s = self._d / self._w, 0.0
        self.fixed_s, self.unit_s = max(fixed_s, LEAST_S), unit_s


class ServiceEstimates:
    """The fits of all classes and types of nodes. A reload keeps them."""

    def __init__(self, learned: LearnedEstimates | None = None) -> None:
        """`learned`: what other sites learned, which counts until there are enough observations."""
        self.learned = learned
        self.public: ServiceEstimates | None = None  # what leaves the process, where tenants are private
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
        if usage is not None and facts is not None:
            exchange.actual_units = used(facts, of.kind, usage)
        elif exchange.streamed_chunks and of.kind not in MEDIA:
            usage = Usage(0, exchange.streamed_chunks)  # not told: a chunk of text is about a token
        if facts is not None and usage is not None:
            units = predictable(facts, of.kind, usage)
            if usage.completion_tokens:
                answer_tokens = usage.completion_tokens / facts.answers
                of.output.observe(facts.prompt_tokens, facts.max_tokens, answer_tokens)
        if not is_timed or seconds <= 0.0:
            return None
        type_name = node.type_name or node.name
        if self.public is not None and (exchange.tenant is None or not exchange.tenant.is_private):
            self.public.observe(of.key, type_name, units, seconds)
        return self.observe(of.key, type_name, units, seconds)

    def observe(self, key: ClassKey, type_name: str, units: float, seconds: float) -> NewEstimate | None:
        """A request took so long on a node of this type; returns the new estimate, None = unchanged."""
        fit = self._of_type.get((key, type_name))
        if fit is None:
            fit = self._of_type[key, type_name] = Fit(0.0, 0.0)
        if not fit.add(units, seconds):
            return None
        self._class_fit(key).add(units, seconds)  # a sample is enough for types without observations
        line = (fit.fixed_s, fit.unit_s) if fit.n >= ENOUGH else self.of(key, type_name)
        return _new(NewEstimate, (type_name, *line))

    def observed(self, key: ClassKey, type_name: str) -> float:
        """How many requests of a class nodes of a type have served."""
        own = self._of_type.get((key, type_name))
        return 0.0 if own is None else own.n

    def of(self, key: ClassKey, type_name: str) -> tuple[float, float]:
        """Fixed seconds, and seconds per unit."""
        own = self._of_type.get((key, type_name))
        if own is not None and own.n >= ENOUGH:
            return own.fixed_s, own.unit_s
        if self.learned is not None and (line := self.learned.line(class_name(key), type_name)) is not None:
            return line
        fit = self._class_fit(key)
        return fit.fixed_s, fit.unit_s

    def new_class(self, key: ClassKey, idx: int) -> RequestClass:
        """A class of requests, whose outputs begin as other sites learned them."""
        learned = self.learned
        return RequestClass(key, idx, None if learned is None else learned.length(class_name(key)))

    def _class_fit(self, key: ClassKey) -> Fit:
        fit = self._of_class.get(key)
        if fit is None:
            fit = self._of_class[key] = Fit(*_PRIOR.get(key[1], (0.1, 0.01)))
        return fit


FORGET_LOADS: Final = 0.8  # weight of the past at each load: about the last five count
MOST_COLD: Final = 64  # first answers that wait for warm ones
FIRST_LOAD_S: Final = 10.0  # of a model that calls load, until one load was measured

LoadKey = tuple[str, str]  # model or adapter, and type of nodes


class LoadFigures(TypedDict):
    """The known loads of an item on nodes of a type."""

    item: str
    type: str
    load_s: float
    loads: int  # observed


class ColdAnswer(NamedTuple):
    """A first answer, with its load."""

    at: LoadKey
    key: ClassKey
    units: float
    seconds: float


@dataclass(slots=True)
class _Mean:
    load_s: float = 0.0
    weight: float = 0.0
    n: int = 0

    def add(self, load_s: float) -> None:
        total = FORGET_LOADS * self.weight * self.load_s + load_s
        self.weight = FORGET_LOADS * self.weight + 1.0
        self.load_s, self.n = total / self.weight, self.n + 1


class LoadTimes:
    """The load times of all items. A reload keeps them."""

    def __init__(self) -> None:
        self._means: dict[LoadKey, _Mean] = {}
        self._cold: list[ColdAnswer] = []

    def observe(self, item: str, type_name: str, seconds: float) -> float:
        """A load took so long; returns the new estimate."""
        mean = self._means.setdefault((item, type_name), _Mean())
        mean.add(max(0.0, seconds))
        return mean.load_s

    def note_cold(self, answer: ColdAnswer) -> None:
        """A node has answered that did not hold the item before."""
        self._cold = [*self._cold, answer][-MOST_COLD:]

    def take_cold(self, key: ClassKey, type_name: str) -> list[ColdAnswer]:
        """The first answers of a class on a type whose warm answers are known now."""
        if not self._cold:
            return []
        found = [one for one in self._cold if one.key == key and one.at[1] == type_name]
        if found:
            self._cold = [one for one in self._cold if one not in found]
        return found

    @property
    def known(self) -> Mapping[LoadKey, float]:
        """The learned load times."""
        return {at: mean.load_s for at, mean in self._means.items()}

    def figures(self) -> list[LoadFigures]:
        """For displays."""
        return [
            {"item": item, "type": type_name, "load_s": mean.load_s, "loads": mean.n}
            for (item, type_name), mean in sorted(self._means.items())
        ]


_Row = list[float]
_REQUESTS, _SINCE, _SECONDS, _ANSWERS = range(4)  # now, since when, request-seconds up to then, answers now
Counts = Mapping[int, float]  # by class


class ClassCounts:
    """Requests of all pools, hedges included. `add` is called at the begin and end of every attempt."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, dict[int, _Row]] = defaultdict(dict)  # node → class → row
        self._read: dict[tuple[int, str], tuple[float, dict[int, float]]] = {}  # when, request-seconds

    def add(self, node_idx: int, class_idx: int, requests: int, answers: int, now_s: float) -> None:
        """A request for so many answers has been sent to a node (`requests` = 1), or has left it (-1)."""
        row = self._rows[node_idx].get(class_idx)
        if row is None:
            row = self._rows[node_idx][class_idx] = [0.0, now_s, 0.0, 0.0]
        row[_SECONDS] += row[_REQUESTS] * (now_s - row[_SINCE])
        row[_REQUESTS] += requests
        row[_SINCE] = now_s
        row[_ANSWERS] += requests * answers

    def answers(self, node_idx: int) -> int:
        """Answers under way on a node: a request may ask for several."""
        return int(sum(row[_ANSWERS] for row in self._rows.get(node_idx, {}).values()))

    def now(self, node_idx: int) -> Counts:
        """Requests of each class on a node."""
        return {c: row[0] for c, row in self._rows.get(node_idx, {}).items() if row[0]}

    def nodes(self) -> list[int]:
        """Nodes that have had requests."""
        return list(self._rows)

    def mean(self, node_idx: int, source: str, now_s: float) -> Counts:
        """Mean requests of each class on a node since the last report of this source; at first, those now."""
        rows = self._rows.get(node_idx, {})
        seconds = {c: row[2] + row[0] * (now_s - row[1]) for c, row in rows.items()}
        before = self._read.get((node_idx, source))
        self._read[node_idx, source] = now_s, seconds
        if before is None or now_s <= before[0]:
            return self.now(node_idx)
        passed_s, earlier = now_s - before[0], before[1]
        return {c: mean for c in seconds if (mean := (seconds[c] - earlier.get(c, 0.0)) / passed_s) > 0.0}

    def forget(self, node_idx: int) -> None:
        """The node is gone: its reports begin anew if it comes back."""
        for key in [key for key in self._read if key[0] == node_idx]:
            del self._read[key]


FORGET_USE: Final = 0.995  # weight of the past at each observation
MEAN_OF: Final = 100  # observations of a node over which its means run
ENOUGH_REPORTS: Final = 8  # observations until a demand counts
_SWEEPS: Final = 50
_LEAST: Final = 1e-9


class DemandFit:
    """The regression of all classes and resources. O(classes²) for an observation of one resource."""

    def __init__(self) -> None:
        many = len(RESOURCES)
        self._xx = np.zeros((many, 0, 0))  # [resources, classes, classes]
        self._xy = np.zeros((many, 0))  # [resources, classes]
        self._seen = np.zeros(many, np.int64)
        self._means: dict[tuple[int, int], tuple[int, dict[int, float], float]] = {}  # n, requests, use
        self._solved: Floats | None = None

    def observe(self, node_idx: int, requests: Mapping[int, float], used: Sequence[float | None]) -> None:
        """A node reports what it uses of each resource, with so many requests of each class there."""
        self._make_room(max(requests, default=-1) + 1)
        for k, amount in enumerate(used):
            if amount is not None:
                self._observe_one(node_idx, k, requests, amount)
        self._solved = None

    def demand(self, rows: int) -> Floats:
        """Demand of each class [rows, resources]; 0 where nothing is known yet."""
        if self._solved is None:
            self._solved = self._solve()
        out = np.zeros((rows, len(RESOURCES)))
        many = min(rows, len(self._solved))
        out[:many] = self._solved[:many]
        return out

    def _observe_one(self, node_idx: int, k: int, requests: Mapping[int, float], used: float) -> None:
        n, mean_x, mean_y = self._means.get((node_idx, k), (0, {}, 0.0))
        share = 1.0 / min(n + 1, MEAN_OF)
        off_x = np.zeros(self._xy.shape[1])
        for c in {*mean_x, *requests}:
            off_x[c] = requests.get(c, 0.0) - mean_x.get(c, 0.0)
            mean_x[c] = mean_x.get(c, 0.0) + share * off_x[c]
        off_y = used - mean_y
        self._means[node_idx, k] = n + 1, mean_x, mean_y + share * off_y
        self._seen[k] += 1
        self._xx[k] *= FORGET_USE
        self._xy[k] *= FORGET_USE
        self._xx[k] += (1.0 - share) * off_x[:, None] * off_x
        self._xy[k] += (1.0 - share) * off_y * off_x

    def _make_room(self, classes: int) -> None:
        more = classes - self._xy.shape[1]
        if more > 0:
            self._xx = np.pad(self._xx, ((0, 0), (0, more), (0, more)))
            self._xy = np.pad(self._xy, ((0, 0), (0, more)))

    def _solve(self) -> Floats:
        found = np.zeros(self._xy.shape)
        for k in np.flatnonzero(self._seen >= ENOUGH_REPORTS):
            found[k] = non_negative(self._xx[k], self._xy[k])
        return found.T


def non_negative(xx: Floats, xy: Floats) -> Floats:
    """The b ≥ 0 of least ½ b'·xx·b − xy·b, for a positive semidefinite xx [n, n]."""
    b = np.zeros(len(xy))
    moving = np.flatnonzero(np.diagonal(xx) > _LEAST)
    for _ in range(_SWEEPS):
        largest = 0.0
        for c in moving:
            new = max(0.0, b[c] + (xy[c] - (xx[c] * b).sum()) / xx[c, c])
            largest, b[c] = max(largest, abs(new - b[c])), new
        if largest <= _LEAST:
            break
    return b
