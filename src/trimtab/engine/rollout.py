"""Rollouts: simulations of a planner's variants, from the state that was reported to the planner."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Templates
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Options
from trimtab.domain.planning import History, Runs, Variant
from trimtab.domain.policy import Decider, Policy, name_of
from trimtab.domain.requests import TRUTH, Requests, Status
from trimtab.domain.view import Plan, View, empty_plan, estimates_s, new_work
from trimtab.engine.calls import BoundPlan, Calls, Raised, bound_plan
from trimtab.engine.layout import COPY, GROUP, no_runs
from trimtab.engine.loop import DONE, FULL
from trimtab.engine.network_state import FLOW_ARRAYS, enlarged
from trimtab.engine.new_state import in_steps, memory_of, new_state
from trimtab.engine.policy_errors import policy_failure
from trimtab.engine.rollout_runs import StageRows, Start, alike_of, start_of_requests, start_of_runs
from trimtab.engine.rollout_state import Placed, last_used_s
from trimtab.engine.state import EVENT, ITEM, State, n_wanted
from trimtab.errors import PolicyError

SPARE_EVENTS = 1024
_NEVER, _UNBOUNDED = float("inf"), 1 << 62
_ERRORS = 1  # seed of errors of estimates
_COPIES = 8  # of an output, on average, that a rollout keeps in mind
_FROM_VIEW = ("fixed_s", "unit_s", "load_s", "rtt_s", "demand")  # a live host corrects them in place
_WAYS = ("way_s", "way_links", "next_link")  # of the network, as the view shows them
_NOT_COPIED = {"events", "requests", "items", "work", "truth", *_FROM_VIEW, *_WAYS, *FLOW_ARRAYS}


@dataclass(frozen=True, eq=False)
class Setting:
    """The inputs that all rollouts of one host share. Pickles."""

    cluster: Cluster
    options: Options
    decider: Decider  # its policy plans; a separate order applies to all variants
    tenant_weight: NDArray[np.float64]  # [tenants]
    compiled: bool
    declared: NDArray[np.void] | Runs | None  # possible WORK of the scenario, or runs, by arrival
    use_from_outside: bool = False  # nodes' resources bound no request, but others use them too
    templates: Templates | None = None  # of the chains whose runs are simulated


class Rollouts:
    """Makes rollouts for the planner of one host. A planning process keeps its copy from plan to plan."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._pickled: bytes | None = None
        self._run: _ReusableRun | None = None
        self.alike = np.zeros(0, np.int64) if setting.templates is None else alike_of(setting.templates)

    def __reduce__(self) -> Any:
        """Pickles the setting only. A process that has loaded the same setting before reuses its object."""
        self._pickled = self._pickled or pickle.dumps(self._setting)
        return _known, (self._pickled,)

    def from_state(self, view: View, history: History, waiting: NDArray[np.void]) -> StateRollout:
        """A rollout that starts from this state."""
        return StateRollout(self, self._setting, view, history, waiting)

    def run_for(self, rows: int, policies: set[Policy]) -> _ReusableRun:
        """A run with at least this many request rows and these policies. Rollouts reuse its arrays."""
        before = self._run
        if before is None or len(before.state.work) < rows or not policies <= before.policies:
            self._run = _ReusableRun(self._setting, rows + rows // 2, policies)
        assert self._run is not None
        return self._run


@functools.lru_cache(maxsize=1)
def _known(pickled: bytes) -> Rollouts:
    return Rollouts(pickle.loads(pickled))


class StateRollout:
    """A `planning.Rollout` that starts from one reported state."""

    def __init__(
        self, rollouts: Rollouts, setting: Setting, view: View, history: History, waiting: NDArray[np.void]
    ) -> None:
        declared = setting.declared
        self.declared = declared.work if isinstance(declared, Runs) else declared
        self._rollouts, self._setting = rollouts, setting
        self._view, self._history, self._waiting = view, history, waiting
        known = [runs for runs in (history.runs, declared) if isinstance(runs, Runs)]
        n_runs, n_stages = (sum(len(getattr(runs, name)) for runs in known) for name in ("work", "rows"))
        self.stages_per_run = max(1.0, n_stages / max(n_runs, 1))

    def __call__(
        self,
        variants: Sequence[Variant],
        future: NDArray[np.void],
        service_cv: float = 0.0,
        s_per_usd: float = 0.0,
    ) -> NDArray[np.float64]:
        """Completion seconds [variants, waiting + future]; nan = not served. Raises PolicyError."""
        start = self._start(future)
        run = self._rollouts.run_for(len(start.work), {variant.policy for variant in variants})
        run.set(start)
        run.set_nodes(self._view, last_used_s(self._view, self._history, run.n_items))
        run.set_errors(service_cv)
        return np.array([run.completion_s(variant, s_per_usd) for variant in variants])

    def _start(self, future: NDArray[np.void]) -> Start:
        setting, view, history = self._setting, self._view, self._history
        if setting.templates is None or history.runs is None:
            placed = Placed(setting.cluster, view, history)
            return start_of_requests(placed, _arriving(self._waiting, future, view.context.now_s))
        declared = setting.declared if isinstance(setting.declared, Runs) else None
        return start_of_runs(setting.cluster, view, history, future, declared, self._rollouts.alike)


def _arriving(waiting: NDArray[Any], future: NDArray[Any], now_s: float) -> NDArray[Any]:
    """The requests that still need a decision, with times relative to now. Waiting ones have their age."""
    work = np.concatenate([waiting, future])
    since_s = np.concatenate([np.full(len(waiting), now_s), np.zeros(len(future))])
    work["arrival_s"] -= since_s
    work["deadline_s"] -= since_s
    return work


def _of_variant(setting: Setting, dispatch: Policy, own_order: Policy) -> Decider:
    """A variant's policy with the order of the run, if the run has a separate order, else with its own."""
    given = setting.decider
    return Decider(dispatch, own_order if given.has_own_order else given.order)


class _PolicySet(Policy):
    """All policies of a rollout as one composite: the state is allocated for the largest needs of any."""

    def __init__(self, policies: set[Policy]) -> None:
        self._policies = tuple(policies)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        """The policies of the rollout."""
        return self._policies


class _PolicyRun:
    """One policy of a rollout: its calls of the loop over the shared arrays, and its own memories."""

    def __init__(self, state: State, setting: Setting, policy: Policy) -> None:
        decider = _of_variant(setting, policy, policy)
        dispatchers = range(len(state.order_memories))
        memories, order_memories = (
            [memory_of(member, setting.cluster) for _ in dispatchers] for member in decider
        )
        self._memory = [array for own in memories + order_memories for array in own]
        self._as_made = [array.copy() for array in self._memory]
        own = {"memories": memories, "order_memories": order_memories, "draws": np.zeros(policy.draws)}
        self.calls = Calls(state._replace(**own), decider, compiled=setting.compiled)

    def reset(self) -> None:
        """Reset the memories to their initial values."""
        for array, as_made in zip(self._memory, self._as_made, strict=True):
            array[...] = as_made
        self.calls.start_anew()


class _ReusableRun:
    """A run whose state is reset for each variant."""

    def __init__(self, setting: Setting, rows: int, policies: set[Policy]) -> None:
        self._setting, self.policies = setting, policies
        outages = _outages_to_come(setting.options.outages)
        options = replace(setting.options, faults=outages, horizon_s=_NEVER, plan_latency_s=0.0)
        options = replace(options, join_s=None, batch_marginal_frac=None, report_noise_frac=None)
        weight = setting.tenant_weight
        names, templates = ("",) * len(weight), setting.templates
        chains = None if templates is None else no_runs(templates, rows)
        requests = Requests(new_work(rows), np.zeros(rows, TRUTH), names, tenant_weight=weight, chains=chains)
        together = _PolicySet(policies)  # one object, or the state takes the order for another policy's
        decider = _of_variant(setting, together, together)
        state = new_state(setting.cluster, requests, options, decider, 0)
        state.config["plan_period_s"] = 0.0
        state.config["use_from_outside"] = setting.use_from_outside
        state.config["store_vertex"] = -1  # loads take what the view says of them
        if templates is not None:
            copies = np.zeros(rows * min(setting.cluster.n_nodes, _COPIES), COPY)
            state = state._replace(
                groups=np.zeros(rows, GROUP), copies=copies, recent=np.zeros(rows, np.int64)
            )
        self.state = state._replace(events=np.zeros(rows + len(state.events) + SPARE_EVENTS, EVENT))
        self.n_items = len(state.item_gib)
        self._runs = {member: _PolicyRun(self.state, setting, member) for member in policies}
        self._plan, self._bound = empty_plan(), bound_plan(empty_plan(), compiled=setting.compiled)
        self._initial = _copies(self.state)
        pairs = {name: (getattr(self.state, name), initial) for name, initial in self._initial.items()}
        self._restored = {n: (_bytes_of(a), _bytes_of(b)) for n, (a, b) in pairs.items() if a.size}
        self._blank_rows, self._rows = state.requests.copy(), state.requests[:0]
        self._held_items, self._items = np.zeros(0, np.int64), np.zeros(0, ITEM)
        self._placed_rows, self._told = np.zeros(0, np.int64), slice(0, 0)
        self._has_runs = templates is not None

    def set(self, start: Start) -> None:
        """Start from these requests at nodes, these runs and these arrivals."""
        work, at = start.work, start.placed_rows
        work["serial"] = np.arange(len(work))
        work["pinned"], work["affinity_node_idx"] = 0, -1
        self._placed_rows, self._told = at, slice(start.first_told, start.n_work)
        self.state.work[: len(work)] = work
        counts = self._initial["counts"]
        counts["arrived"], counts["work"] = start.n_begun, start.n_work
        self._initial["contexts"]["n_wanted"] = n_wanted(self.state, work)
        self._rows = self._blank_rows[: len(work)].copy()
        if start.stage_rows is not None:
            self._set_runs(start, start.stage_rows)
        for name in ("node_idx", "estimate_s", "left_s"):
            self._rows[name][at] = getattr(start.placed, name)
        self._restored["requests"] = _bytes_of(self.state.requests[: len(work)]), _bytes_of(self._rows)

    def _set_runs(self, start: Start, laid: StageRows) -> None:
        """Start from these stages. A run changes the WORK of stages once they are ready."""
        state, initial, n_work = self.state, self._initial, start.n_work
        self._rows["status"][n_work:], self._rows["node_idx"][n_work:] = laid.status, laid.node_idx
        for name in ("runs", "groups", "stages", "copies"):
            given, whole = getattr(laid, name), initial[name]
            whole[: len(given)] = given
            self._restored[name] = _bytes_of(getattr(state, name)[: len(given)]), _bytes_of(given)
        self._restored["work"] = _bytes_of(state.work[: len(start.work)]), _bytes_of(start.work)
        initial["recent"][: len(start.placed_rows)] = start.placed_rows
        initial["counts"]["copies"] = len(laid.copies)
        config = initial["config"]
        config["margin"] -= config["run_margin"]
        config["run_margin"] = laid.most * (2 + int(self._setting.cluster.slots.max()))
        config["margin"] += config["run_margin"]

    def set_nodes(self, view: View, used_s: NDArray[np.float64]) -> None:
        """Start from these nodes. `used_s` [nodes, items] is the last use of each item."""
        state, initial, nodes = self.state, self._initial, view.nodes
        initial["nodes"]["up"] = np.maximum(nodes.up, 0)
        initial["nodes"]["room"] = nodes.room + nodes.in_flight
        initial["resident"][...] = view.resident
        initial["hidden"]["memory_used_gib"] = (view.resident * view.item_gib).sum(axis=1)
        self._set_outages(view)
        self._set_items(view, used_s)
        for name in (*_FROM_VIEW, *_WAYS):
            getattr(state, name)[...] = getattr(view, name)
        if self._setting.use_from_outside:
            initial["used"][...] = self._used_by_others(view)
        state.views[0].link_gib_per_s[...] = initial["links"]["gib_per_s"] = view.link_gib_per_s
        if self._setting.cluster.network is not None:
            initial["net_links"]["gib_per_s"] = view.link_gib_per_s
        work, truth = state.work[: len(self._rows)], state.truth[: len(self._rows)]
        truth["units"], truth["factor"] = work["units"], 1.0
        truth["output_tokens"], truth["given_tokens"] = work["output_tokens"], 0
        self._set_shares(view)

    def _set_outages(self, view: View) -> None:
        """Set the planned outages to come, of nodes that are up. A node that is down stays down."""
        faults, outages = self._initial["faults"], view.outages
        faults["start_s"] = faults["end_s"] = _NEVER
        if len(faults) != len(outages) or not len(faults):
            return
        now_s, j = view.context.now_s, outages["node_idx"]
        comes = (outages["start_s"] > now_s) & (view.nodes.up[j] == 1)
        for name in ("start_s", "end_s"):
            faults[name] = np.where(comes, outages[name] - now_s, _NEVER)
        faults["node_idx"] = j

    def _used_by_others(self, view: View) -> NDArray[np.float64]:
        """Reported use of nodes without that of the requests that start there, [nodes, resources]."""
        own, at = np.zeros(view.used.shape), self._placed_rows
        np.add.at(own, self._rows["node_idx"][at], view.demand[self.state.work["class_idx"][at]])
        return in_steps(np.maximum(view.used - own, 0.0))

    def _set_items(self, view: View, used_s: NDArray[np.float64]) -> None:
        """Set the items that nodes hold. A run reads only `in_use` of all other items, which stays 0."""
        _bytes_of(self.state.items)[...] = 0
        self._held_items = np.flatnonzero(view.resident)
        self._items = np.zeros(len(self._held_items), ITEM)
        self._items["used_s"] = used_s.ravel()[self._held_items]

    def _set_shares(self, view: View) -> None:
        """Requests at nodes take their reported time, whichever class their row has."""
        at = self._placed_rows
        work, rows = self.state.work[at], self._rows[at]
        nominal_s = estimates_s(view, work, rows["node_idx"])
        known = np.isfinite(nominal_s) & (nominal_s > 0.0)
        factor = np.where(known, rows["left_s"] / np.where(known, nominal_s, 1.0), 1.0)
        self.state.truth["factor"][at] = factor
        if self._setting.cluster.engines is not None:
            self._set_tokens(work, rows)

    def _set_tokens(self, work: NDArray[np.void], rows: NDArray[np.void]) -> None:
        """Requests that engines work on are read, and have made the tokens that their time is over of."""
        truth, at = self.state.truth, self._placed_rows
        left = np.clip(rows["left_s"] / np.maximum(rows["estimate_s"], 1e-9), 0.0, 1.0)
        begun = left < 1.0
        truth["given_tokens"][at] = np.where(begun, work["input_tokens"], 0)
        truth["output_tokens"][at] = np.ceil(np.where(begun, left, 1.0) * work["output_tokens"])

    def set_errors(self, service_cv: float) -> None:
        """Multiply the service of arrivals by lognormal factors of mean 1, the same in every rollout."""
        arriving = np.delete(np.arange(len(self._rows)), self._placed_rows)
        sigma = math.sqrt(math.log1p(service_cv**2))
        errors = np.random.default_rng(_ERRORS).lognormal(-(sigma**2) / 2.0, sigma, len(arriving))
        self.state.truth["factor"][arriving] *= errors

    def completion_s(self, variant: Variant, s_per_usd: float) -> NDArray[np.float64]:
        """Completion seconds of the arrivals under one variant, with what they cost; nan = not served."""
        state, policy_run = self.state, self._runs[variant.policy]
        for current, initial in self._restored.values():
            current[...] = initial
        _whole(state.items)[self._held_items] = _whole(self._items)
        state.config["compares"] = variant.policy.compares
        policy_run.reset()
        policy_run.calls.use_plan(self._bound_plan(variant.plan))
        try:
            policy_run.calls.place_requests(len(self._placed_rows))
            self._advance(variant, policy_run.calls)
        except Raised as error:
            raise policy_failure(
                name_of(variant.policy), error.__cause__, "in a rollout"
            ) from error.__cause__
        rows = state.requests[self._told]
        arrival_s = np.maximum(state.work["arrival_s"][self._told], 0.0)
        completion_s = rows["finish_s"] - arrival_s
        if s_per_usd != 0.0:
            completion_s += s_per_usd * self._usd()[self._told]
        return np.where(rows["status"] == Status.FINISHED, completion_s, np.nan)

    def _usd(self) -> NDArray[np.float64]:
        """What the node time of each row cost, [rows]; of a run that of its stages from the start on."""
        state, rows = self.state, self.state.requests[: len(self._rows)]
        usd_per_s = state.views[0].usd_per_s[state.nodes["type_idx"][rows["node_idx"]]]
        usd: NDArray[np.float64] = usd_per_s * (rows["finish_s"] - rows["start_s"])
        if not self._has_runs:
            return usd
        of_run = state.stages["run"][: len(rows)]
        is_served = (of_run >= 0) & np.isfinite(usd)
        usd[of_run[is_served]] = 0.0
        np.add.at(usd, of_run[is_served], usd[is_served])
        return usd

    def _bound_plan(self, plan: Plan) -> BoundPlan:
        """The bound plan of a variant. Consecutive variants often share a plan, so the last one is kept."""
        if plan is not self._plan:
            self._plan, self._bound = plan, bound_plan(plan, compiled=self._setting.compiled)
        return self._bound

    def _advance(self, variant: Variant, calls: Calls) -> None:
        while (code := calls.advance(_NEVER, _UNBOUNDED)) == FULL:
            calls.use_arrays(enlarged(calls.state))
        if code != DONE:
            answer = int(self.state.counts["answer"][0])
            raise PolicyError(f"policy {name_of(variant.policy)!r} answered {answer} in a rollout")


def _outages_to_come(outages: NDArray[np.void] | None) -> NDArray[np.void] | None:
    """FAULT [planned outages], without times: a node is down, once."""
    if outages is None or not len(outages):
        return None
    faults = np.zeros(len(outages), FAULT)
    faults["start_s"] = faults["end_s"] = faults["mtbf_s"] = _NEVER
    return faults


def _copies(state: State) -> dict[str, NDArray[Any]]:
    """Copies of the arrays that a run changes, each once, without those that `_ReusableRun` sets itself."""
    copies: dict[str, NDArray[Any]] = {}
    known: set[int] = set()
    for name, array in state._asdict().items():
        if isinstance(array, np.ndarray) and not (array.size and array.ctypes.data in known):
            known.add(array.ctypes.data)
            if name not in _NOT_COPIED:
                copies[name] = array.copy()
    return copies


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The same memory as bytes: copying bytes is much faster than copying records field by field."""
    return array.reshape(-1).view(np.uint8)


def _whole(array: NDArray[Any]) -> NDArray[np.void]:
    """The same records in one dimension, without fields: NumPy copies each as one block."""
    return array.reshape(-1).view(f"V{array.itemsize}")
