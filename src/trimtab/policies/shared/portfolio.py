"""Shared parts of policies that simulate others: the simulated work, and the comparison of results."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, NonNegative
from trimtab.domain.planning import Evidence, History, Rollout, Variant
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, empty_plan
from trimtab.policies.data_aware.locality import Locality
from trimtab.policies.list_scheduling.downstream_aware import DownstreamAware
from trimtab.policies.load_aware.cost_index import N_WEIGHTS, CostIndex
from trimtab.policies.load_aware.even_work import EvenWork
from trimtab.policies.load_aware.late_binding import LateBinding
from trimtab.policies.load_aware.least_expected_wait import LeastExpectedWait
from trimtab.policies.load_aware.sampled_completion import SampledCompletion
from trimtab.policies.optimising.dual_price import DualPrice
from trimtab.policies.predictive.outage_aware import OutageAware
from trimtab.policies.predictive.watch import availability

Floats = NDArray[np.float64]
Objective: TypeAlias = Literal["mean", "p99"]

COST_INDEX, LATE_BINDING, DUAL_PRICE, OUTAGE_AWARE = CostIndex(), LateBinding(), DualPrice(), OutageAware()
FOR_RUNS: tuple[Policy, ...] = (DownstreamAware(), DownstreamAware(ageing=0.8))  # the second for the tail
PORTFOLIO: tuple[Policy, ...] = (
    LATE_BINDING,  # what it holds, any other can still place; what others have placed, it can't hold
    COST_INDEX,  # under weights that are tuned
    LeastExpectedWait(),
    SampledCompletion(),
    SampledCompletion(d=8),
    EvenWork(),
    Locality(),
    DUAL_PRICE,  # at prices that are found anew for each rollout
    OUTAGE_AWARE,  # only where there is an outlook: else it is least-expected-completion
    *FOR_RUNS,  # only where there are runs of chains
)
FIRST_WEIGHTS = (COST_INDEX.w_work, COST_INDEX.w_excess, COST_INDEX.w_wait)  # before that of the price
TUNED = 1  # the candidate that has weights
LEAST_ARRIVALS = 64  # fewer give no evidence
MOST_WINDOWS = 2  # that are simulated, of work that comes
STAGES = 8  # for each request of a window as many stages of runs are simulated at most
UNSERVED = 2.0  # an unserved request counts as this times the longest completion of all
SERVICE_CV = 0.3  # of services about their estimates: if simulated as exact, early binding looks too good
BATCHES = 16  # of consecutive requests: these are independent enough of each other
MOVES = ((0, 2.0), (0, 0.5), (2, 2.0), (2, 0.5))  # local changes: (which weight, times what)
_TOLD = 4  # fields of `Evidence` by candidate
_BEGIN_OF_TOLD = N_WEIGHTS + 3  # in `plan.params`
TAIL_FRAC = 0.02  # an objective p99 counts the mean of the longest of these: steadier than one quantile


class Notes(NamedTuple):
    """The state of a portfolio between plans; written to `plan.params`."""

    weights: Floats  # [N_WEIGHTS] of the cost index; first, where the cost index reads them
    last_serial: float  # of the arrivals that were simulated
    move: float  # local change that is tried next
    told: Floats  # [4, candidates], or empty where nothing was simulated yet: the fields of `Evidence`
    scores: Floats  # [candidates] or empty, log of the objective over the candidates' median, smoothed
    watch: Floats = np.zeros(0)  # what plans have seen of failures, as `availability` keeps it

    @classmethod
    def read(cls, params: Floats, w_price: float = 0.0) -> Notes:
        """From the last plan; its first ones where there was none, with this weight of prices."""
        if len(params) < _BEGIN_OF_TOLD:
            weights = np.array([*FIRST_WEIGHTS, w_price])
            return cls(weights, -1.0, 0.0, np.zeros((_TOLD, 0)), np.zeros(0))
        last_serial, move, width = params[N_WEIGHTS:_BEGIN_OF_TOLD]
        end_of_told = _BEGIN_OF_TOLD + _TOLD * int(width)
        told = params[_BEGIN_OF_TOLD:end_of_told].reshape(_TOLD, int(width))
        begin = end_of_told + 1
        end = begin + int(params[end_of_told])
        return cls(params[:N_WEIGHTS], last_serial, move, told, params[begin:end], params[end:])

    def written(self) -> Floats:
        """As `plan.params`, once simulated."""
        counts = [self.last_serial, self.move, float(self.told.shape[1])]
        told, n_scores = self.told.ravel(), [float(len(self.scores))]
        return np.concatenate([self.weights, counts, told, n_scores, self.scores, self.watch])

    def changed_weights(self) -> Floats:
        """The weights after the local change that is next."""
        which, factor = MOVES[int(self.move) % len(MOVES)]
        weights = self.weights.copy()
        weights[which] = np.clip(weights[which] * factor, 0.02, 16.0)
        return weights

    def after(self, history: History, found: Simulated, active: int, has_gained: bool) -> Notes:
        """Once simulated, with this candidate in force.

        A local change that gained is kept and tried again, else the next is due.
        """
        told = _told(found.cost[:-1], active)
        notes = self._replace(last_serial=last_serial_of(history), told=told, watch=found.watch)
        if has_gained:
            return notes._replace(weights=self.changed_weights())
        return notes._replace(move=self.move + 1.0)


def last_serial_of(history: History) -> float:
    """Serial of the last arrival; -1 where there was none."""
    came = history.came
    return float(came["serial"][-1]) if len(came) else -1.0


def has_little_come(history: History, last_serial: float, window: int) -> bool:
    """Whether less than a quarter of a window has come since this arrival."""
    return last_serial >= 0.0 and int((history.came["serial"] > last_serial).sum()) < window // 4


class Simulated(NamedTuple):
    """The result of a rollout, and what it was made under."""

    cost: Floats  # [candidates + 1, requests] of the portfolio, as far as there are candidates here, and of
    # the cost index after the local change
    price: Floats  # [nodes, 1] of node time; where there is an outlook the columns of `availability` follow
    watch: Floats  # as in `Notes`


def simulated(
    notes: Notes,
    active: int,
    told: tuple[View, History, Any],
    rollout: Rollout | None,
    window: int,
    objective: str,
) -> Simulated | None:
    """Try the portfolio on what came last; `told`: what a planner is told, view, history and what waits.

    Only the second half counts: what the others have placed, and the models they have loaded, stand in the
    first half in the way of the next candidate. None as of `recent_work`. Under prices the cost of a request
    is what it is to `cost-index`: its completion, and `w_price` seconds for each dollar of node time.
    """
    view, history, _ = told
    work = recent_work(view, history, rollout, window, notes.last_serial)
    if rollout is None or work is None:
        return None
    price, (outlook, watch) = DUAL_PRICE.plan(*told, rollout).price, availability(view, notes.watch)
    has_news = bool(outlook[:, 0].any() or np.isfinite(outlook[:, 1]).any())
    in_rollout = price
    if has_news:  # rollouts begin at time 0
        begun_s = np.array([0.0, view.context.now_s, view.context.now_s])
        price, in_rollout = np.hstack([price, outlook]), np.hstack([price, outlook - begun_s])
    now, changed = (
        empty_plan()._replace(params=w, price=in_rollout) for w in (notes.weights, notes.changed_weights())
    )
    listed = PORTFOLIO if history.runs is not None else PORTFOLIO[: -len(FOR_RUNS)]
    is_tried = np.array([p is not OUTAGE_AWARE or has_news or k == active for k, p in enumerate(listed)])
    variants = [Variant(p, now) for k, p in enumerate(listed) if is_tried[k]] + [Variant(COST_INDEX, changed)]
    completion_s = rollout(variants, work, SERVICE_CV, notes.weights[-1])
    place = np.cumsum(is_tried) - 1
    cost = costs(completion_s[:, completion_s.shape[1] // 2 :], objective, place[active])
    place[~is_tried] = place[active]  # counts as equal to the one in force, so it does not take over
    return Simulated(cost[np.append(place, -1)], price, watch)


class PortfolioPolicy(Policy):
    """Base of policies that let the candidate of the portfolio decide that does best in rollouts."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROLLOUT})
    objective: Objective = "mean"
    window: Count
    w_price: NonNegative
    hysteresis_frac: NonNegative

    dispatch = staticmethod(PORTFOLIO[0].dispatch)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        """The portfolio."""
        return PORTFOLIO

    @property
    def all_needs(self) -> frozenset[Need]:
        """Its needs; `downstream-aware` decides only where there are runs of chains, and so what it needs."""
        return self.needs.union(*(p.all_needs for p in PORTFOLIO[: -len(FOR_RUNS)]))

    def init(self, cluster: Cluster) -> Memory:
        """The first candidate's."""
        return PORTFOLIO[0].init(cluster)

    def plan(self, view: View, history: History, waiting: Any, rollout: Rollout | None) -> Plan | None:
        """Simulate the candidates, and let the best take over."""
        notes, active = Notes.read(history.plan.params, self.w_price), int(history.plan.active_idx[0])
        found = simulated(notes, active, (view, history, waiting), rollout, self.window, self.objective)
        if found is None:
            return None
        has_gained = is_better(found.cost[-1], found.cost[TUNED], self.hysteresis_frac)
        best, scores = self.best(notes, found.cost, active, has_gained)
        params = notes.after(history, found, active, has_gained)._replace(scores=scores).written()
        return empty_plan()._replace(params=params, active_idx=np.array([best]), price=found.price)

    def best(self, notes: Notes, cost: Floats, active: int, has_gained: bool) -> tuple[int, Floats]:
        """The candidate to be in force after a rollout, and the next `Notes.scores`; `cost`: `Simulated`'s.

        `has_gained`: the last row of `cost`, the cost index after the local change, is better than its row.
        """
        raise NotImplementedError

    def evidence(self, plan: Plan) -> Evidence | None:
        """The last rollout; None before the first."""
        told = Notes.read(plan.params).told
        return Evidence(self.objective, *told) if told.size else None


def window_of_runs(rollout: Rollout, window: int) -> int:
    """A window of as many runs, or of fewer where they have many stages."""
    return max(min(window, int(STAGES * window / rollout.stages_per_run)), min(window, LEAST_ARRIVALS))


def recent_work(
    view: View, history: History, rollout: Rollout | None, window: int, last_serial: float
) -> NDArray[np.void] | None:
    """Work to simulate, as `stretch` gives it, once a quarter of a window has come since `last_serial`.

    Where more is on the nodes than half a window, work that comes waits for it, whatever the policy: then
    twice as many arrivals as that are simulated, up to `MOST_WINDOWS`, so that some tell a difference. None
    where nothing can be simulated, or too little has come.
    """
    if rollout is None:
        return None
    window = window_of_runs(rollout, window)
    if has_little_come(history, last_serial, window):
        return None
    in_flight = int(view.nodes.in_flight.sum() / rollout.stages_per_run)
    return stretch(history, rollout, min(max(window, 2 * in_flight), MOST_WINDOWS * window))


def stretch(history: History, rollout: Rollout, window: int) -> NDArray[np.void] | None:
    """Work to simulate: the last `window` arrivals at their distances; while they are few, declared work.

    None where there is neither.
    """
    past = history.came[-window:]
    if len(past) < max(LEAST_ARRIVALS, window // 4) and rollout.declared is not None:
        past = rollout.declared[:window]
    if len(past) < LEAST_ARRIVALS:
        return None
    work = past[np.argsort(past["arrival_s"], kind="stable")].copy()
    begins_s = work["arrival_s"][0]
    work["arrival_s"] -= begins_s
    work["deadline_s"] -= begins_s
    return work


def costs(completion_s: Floats, objective: str, reference: int) -> Floats:
    """The cost of each request, [variants, requests]: means of these are the objective.

    For p99 that is the mean of the longest, as the least over q of q + mean(max(0, completion - q)) / share
    (Rockafellar, Uryasev: "Optimization of conditional value-at-risk", Journal of Risk 2(3), 2000), with the
    q of the variant `reference`.
    """
    known = np.isfinite(completion_s)
    worst_s = completion_s[known].max(initial=0.0)
    filled = np.where(known, completion_s, UNSERVED * worst_s)
    if objective == "mean":
        return filled
    q = np.quantile(filled[reference], 1.0 - TAIL_FRAC)
    tails: Floats = q + np.maximum(filled - q, 0.0) / TAIL_FRAC
    return tails


def is_better(challenger: Floats, holder: Floats, hysteresis_frac: float) -> bool:
    """Whether the challenger's costs [requests] are lower by so much, and by more than chance (paired test).

    The mean of the differences must be over twice its standard error, which is taken from means of batches.
    """
    gain = holder - challenger
    if gain.mean() <= hysteresis_frac * holder.mean():
        return False
    means = _batch_means(gain)
    return bool(means.mean() > _error_s(means))


def _told(cost: Floats, active: int) -> Floats:
    """The fields of `Evidence`, [4, candidates], of costs [candidates, requests]."""
    apart = cost - cost[active]
    fields = (
        cost.mean(axis=1),
        _error_s(_batch_means(cost)),
        apart.mean(axis=1),
        _error_s(_batch_means(apart)),
    )
    return np.array(fields)


def _batch_means(values: Floats) -> Floats:
    """Means of consecutive batches of values [..., requests]: [..., BATCHES]."""
    n = values.shape[-1]
    begins = np.arange(BATCHES) * n // BATCHES
    means: Floats = np.add.reduceat(values, begins, axis=-1) / np.diff(begins, append=n)
    return means


def _error_s(means: Floats) -> Floats:
    """Twice the standard error of the mean of these [..., BATCHES], as independent."""
    error_s: Floats = 2.0 * means.std(axis=-1, ddof=1) / np.sqrt(BATCHES)
    return error_s
