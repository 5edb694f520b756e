"""Runs of requests that ask an agent: the simulator stops at every decision, and goes on with the answer.

One kernel answers and advances all runs of a vector. An agent decides when a policy of the catalogue would be
asked: about an arrival, and about held requests when a slot is free. A run in which nothing else can happen
asks about what is held once more, and then the agent may not hold: so all that can be served is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, TypedDict

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.needs import Need
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.calls import advance_addresses, advance_at, state_at
from trimtab.engine.driver import Driver
from trimtab.engine.held_work import ASKED_ABOUT_HELD
from trimtab.engine.loop import DECIDE, DONE, FULL, REACHED
from trimtab.engine.state import State
from trimtab.engine.telemetry import dispatcher_of
from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.scenario.scenario_parts import ClusterSource, ScenarioSource, TraceSource, resolved
from trimtab.learn.environments.observations import (
    N_NODE_COLUMNS,
    N_PAIR_COLUMNS,
    note_nodes,
    note_pairs,
)
from trimtab.learn.environments.rewards import (
    N_TALLIES,
    REWARDS,
    SLOTS,
    SPAN_S,
    USUAL_S,
    check_reward,
    reward_since,
    weights_of,
)
from trimtab.policies import find
from trimtab.policies.shared.features import features_memory

Family = Callable[[int], ScenarioSource]  # the scenario of an episode's seed

_KEPT: Final = 64  # inputs of episodes that are kept
_ENDLESS: Final = 1 << 62
# `marks` of a run: its first request not over; 1 = nothing else will happen, and how many events there had
# been when that was so last; pairs shown
N_MARKS: Final = 4
OPEN_FROM, LAST_CALL, LAST_STEPS, N_PAIRS = range(N_MARKS)
IDLE, LOOK, ANSWER = range(3)  # `todo` of a run


class AsksAboutOne(Policy):
    """A decision is about one request: each takes a node when it comes, or is held."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HOLDING})


class AsksAboutHeld(Policy):
    """A decision is about held requests and free slots."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HOLDING, Need.LOADING_AHEAD})
    compares: ClassVar[int] = 128


@helper
def _answer(s: State, action: int, mask: Any, pairs: Any, is_pairs: bool, is_last: bool) -> None:
    """Write what the agent answers. What the mask forbids holds the request, unless nothing else happens."""
    counts, n = s.counts, len(pairs) if is_pairs else s.contexts.n_nodes[0]
    chosen = action if action >= 0 and action < n and mask[action] else -1
    if chosen < 0 and is_last:
        for i in range(n):
            if mask[i] and chosen < 0:
                chosen = i
    row = pairs[chosen, 0] if is_pairs and chosen >= 0 else 0
    j = pairs[chosen, 1] if is_pairs and chosen >= 0 else chosen
    if counts.awaited[0] == ASKED_ABOUT_HELD:
        counts.best[0] = row + 1 if chosen >= 0 else 0
        counts.bound[0] = j + 1
    else:
        s.ranking[0] = j
        counts.answer[0] = 1 if chosen >= 0 else 0


@helper
def _show(
    s: State, out: Any, mask: Any, pairs: Any, marks: Any, is_pairs: bool, fast: Any, tally: Any
) -> int:
    """Fill in the observation of the present decision; returns how many choices there are."""
    slots, usual_s, r = tally[SLOTS], tally[USUAL_S], s.counts.deciding[0]
    if not is_pairs:
        return int(note_nodes(s, r, dispatcher_of(s, r), out, mask, fast, slots, usual_s))
    n = 0
    if s.counts.awaited[0] == ASKED_ABOUT_HELD:
        for i in range(s.counts.n_passed_over[0]):
            n = note_pairs(s, s.passed_over[i], s.counts.offering[0], out, pairs, n, fast, slots, usual_s)
    else:
        n = note_pairs(s, r, dispatcher_of(s, r), out, pairs, n, fast, slots, usual_s)
    for p in range(max(n, marks[N_PAIRS])):
        mask[p] = p < n
        if p >= n:
            for k in range(N_PAIR_COLUMNS):
                out[p * N_PAIR_COLUMNS + k] = 0.0
    marks[N_PAIRS] = n
    return n


@kernel
def step_runs(
    loop: Any,
    bounds: Any,
    horizon_s: Any,
    todo: Any,
    codes: Any,
    actions: Any,
    weights: Any,
    is_pairs: bool,
    holds: bool,
    out: Any,
    masks: Any,
    rewards: Any,
    pairs: Any,
    marks: Any,
    tallies: Any,
    fast: Any,
    limit_s: Any,
    counted: Any,
) -> int:
    """Answer and advance the runs, up to their next decisions; returns how many need their host (FULL).

    todo [runs]: ANSWER, LOOK (the run stands at a decision or an end that is only to be shown) or IDLE.
    `holds`: whether holding is the action after the last node or pair.
    """
    advance, full = advance_at(loop[0], loop[1]), 0
    for e in range(len(todo)):
        if todo[e] == IDLE:
            continue
        s, code, mask, mark = state_at(bounds[e, 0]), codes[e], masks[e], marks[e]
        if todo[e] == ANSWER:
            _answer(s, actions[e], mask, pairs[e], is_pairs, mark[LAST_CALL] == 1)
            mark[LAST_CALL] = 0
            code = advance(bounds[e], horizon_s[e], _ENDLESS)
        while True:
            if code == DECIDE:
                if _show(s, out[e], mask, pairs[e], mark, is_pairs, fast[e], tallies[e]) > 0:
                    break
                _answer(s, -1, mask, pairs[e], is_pairs, False)
            elif (
                code == DONE
                and s.counts.in_system[0] > s.counts.in_nodes[0]
                and mark[LAST_STEPS] != s.counts.steps[0]
            ):
                mark[LAST_CALL], mark[LAST_STEPS] = 1, s.counts.steps[0]
                s.counts.offers_due[0] = 1
            else:
                break
            code = advance(bounds[e], horizon_s[e], _ENDLESS)
        codes[e] = code
        full += 1 if code == FULL else 0
        if holds:
            mask[len(mask) - 1] = code == DECIDE and mark[LAST_CALL] == 0
        gained, mark[OPEN_FROM] = reward_since(
            s, weights, tallies[e], mark[OPEN_FROM], limit_s[e], counted[e]
        )
        rewards[e] += gained
    return full


def checked_seeds(seeds: Sequence[int] | None) -> tuple[int, ...] | None:
    """Seeds that episodes are drawn from; None = any. Raises UsageError if there is none."""
    if seeds is not None and not len(seeds):
        raise UsageError("is empty", field="seeds", value=seeds, expected="at least one whole number")
    return None if seeds is None else tuple(int(seed) for seed in seeds)


def drawn_seed(seeds: tuple[int, ...] | None, rng: np.random.Generator) -> int:
    """The seed of an episode, one of these or any."""
    return int(rng.integers(1 << 31)) if seeds is None else seeds[int(rng.integers(len(seeds)))]


class Episodes:
    """The inputs of episodes: a scenario, or a family of scenarios, at seeds."""

    def __init__(
        self,
        scenario: ScenarioSource | Family,
        *,
        seeds: Sequence[int] | None,
        load: float | None,
        trace: TraceSource | None,
        cluster: ClusterSource | None,
    ) -> None:
        """`seeds` that episodes draw from; None = any. Raises ScenarioError, and UsageError for no seed."""
        self.seeds = checked_seeds(seeds)
        self._scenario_of: Callable[[int], Scenario]
        if callable(scenario):
            family: Family = scenario
            self._scenario_of = lambda seed: resolved(family(seed), trace=trace, on=cluster, load=load)
        else:
            fixed = resolved(scenario, trace=trace, on=cluster, load=load)
            self._scenario_of = lambda _: fixed
        self.inputs = lru_cache(_KEPT)(self._build)

    def _build(self, seed: int) -> RunInputs:
        return build(self._scenario_of(seed), seed)

    def draw(self, rng: np.random.Generator) -> int:
        """The seed of the next episode."""
        return drawn_seed(self.seeds, rng)


class Setting(TypedDict, total=False):
    """What all of these environments take.

    Items:
        seeds: scenario seeds that episodes are drawn from; None = any.
        load: offered work over capacity; None = the scenario's own.
        trace: replaces the scenario's requests, as in `trimtab.simulate`.
        cluster: replaces the scenario's nodes, as in `trimtab.simulate`.
        order: name of the order in which held requests are offered; None = by arrival.
        reward: one of `rewards.REWARDS`, or several with their weights.
        dtype: "float32", or "float64".
    """

    seeds: Sequence[int] | None
    load: float | None
    trace: TraceSource | None
    cluster: ClusterSource | None
    order: str | None
    reward: str | Mapping[str, float]
    dtype: str


class RequestRuns:
    """Several runs that ask an agent, over shared arrays, [runs, …].

    Attributes:
        observations: [runs, rows, columns], a row for each node or pair.
        masks: [runs, actions] actions that are allowed now.
        rewards: [runs] of the last step.
        codes: [runs] DECIDE while a run asks; DONE or REACHED (the horizon) when it is over.
        seeds: [runs] scenario seeds of the present episodes.
    """

    def __init__(
        self,
        n: int,
        scenario: ScenarioSource | Family,
        *,
        pairs: int = 0,
        nodes: int | None = None,
        holds: bool = True,
        seeds: Sequence[int] | None = None,
        load: float | None = None,
        trace: TraceSource | None = None,
        cluster: ClusterSource | None = None,
        order: str | None = None,
        reward: str | Mapping[str, float] = "completion",
        dtype: str = "float32",
    ) -> None:
        """`pairs`: most pairs that a decision is about; 0 = decisions are about nodes, at most `nodes`."""
        self.episodes = Episodes(scenario, seeds=seeds, load=load, trace=trace, cluster=cluster)
        asks = AsksAboutHeld() if pairs else AsksAboutOne()
        self._decider = Decider.of(asks, None if order is None else find(f"random+{order}").order)
        first = self.episodes.inputs(0 if self.episodes.seeds is None else self.episodes.seeds[0])
        self._weights = weights_of(reward, REWARDS)
        check_reward(self._weights, first)
        self._is_pairs, self._holds = pairs > 0, holds
        rows = pairs or nodes or first.cluster.n_nodes
        columns = N_PAIR_COLUMNS if pairs else N_NODE_COLUMNS
        self._out = np.zeros((n, rows * columns), dtype)
        self.observations = self._out.reshape(n, rows, columns)
        self.masks = np.zeros((n, rows + holds), np.bool_)
        self.rewards, self.codes, self.seeds = np.zeros(n), np.full(n, DONE), np.zeros(n, np.int64)
        self._drivers: list[Driver | None] = [None] * n
        self._todo, self._marks = np.full(n, IDLE), np.zeros((n, N_MARKS), np.int64)
        self._pairs, self._tallies = np.zeros((n, max(1, pairs), 2), np.int64), np.zeros((n, N_TALLIES))
        self._bounds, self._horizon_s = np.zeros((n, 1), np.int64), np.full(n, np.inf)
        self._fast, self._limit_s = np.zeros((n, 1)), np.zeros((n, 1))
        self._counted = np.zeros((n, 1), np.uint8)
        self._loop = advance_addresses()

    def begin(self, runs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these runs, up to its first decision. Raises UsageError."""
        self._todo[:] = IDLE
        for e, seed in zip(runs, seeds, strict=True):
            self._begin(e, seed)
        self._advance(np.zeros(len(self._todo), np.int64))

    def _begin(self, e: int, seed: int) -> None:
        inputs = self.episodes.inputs(seed)
        cluster, requests = inputs.cluster, inputs.requests
        if not self._is_pairs and cluster.n_nodes > self.observations.shape[1]:
            raise UsageError(
                f"the scenario of seed {seed} has {cluster.n_nodes} nodes",
                field="nodes",
                value=self.observations.shape[1],
                expected="the most nodes that an episode has",
            )
        driver = Driver(cluster, requests, inputs.options, self._decider, seed=seed, mode="compiled")
        self._drivers[e], self.seeds[e], self._horizon_s[e] = driver, seed, inputs.options.horizon_s
        self._bounds = _wide_enough(self._bounds, len(driver.addresses))
        self._limit_s = _wide_enough(self._limit_s, len(requests))
        self._counted = _wide_enough(self._counted, len(requests))
        self._fast = _wide_enough(self._fast, cluster.n_types)
        self._limit_s[e, : len(requests)] = inputs.slo_s[requests.work["class_idx"]]
        self._tallies[e] = _first_tally(inputs)
        self._fast[e, : cluster.n_types] = features_memory(cluster, 0)
        for array in (self._counted, self._marks, self._out, self.masks, self.rewards):
            array[e] = 0
        self._go_on(e)

    def _go_on(self, e: int) -> None:
        """Advance run e to its next decision or end, whatever room its events need."""
        driver = self._drivers[e]
        assert driver is not None
        self.codes[e] = driver.advance(self._horizon_s[e])
        self._bounds[e], self._todo[e] = driver.addresses, LOOK

    def step(self, actions: np.ndarray) -> None:
        """Answer all runs that ask, [runs] actions, and advance them to their next decision or end."""
        self.rewards[:] = 0.0
        self._todo[:] = np.where(self.codes == DECIDE, ANSWER, IDLE)
        self._advance(actions)

    def _advance(self, actions: np.ndarray) -> None:
        while step_runs(
            self._loop,
            self._bounds,
            self._horizon_s,
            self._todo,
            self.codes,
            actions,
            self._weights,
            self._is_pairs,
            self._holds,
            self._out,
            self.masks,
            self.rewards,
            self._pairs,
            self._marks,
            self._tallies,
            self._fast,
            self._limit_s,
            self._counted,
        ):
            self._todo[:] = IDLE
            for e in np.flatnonzero(self.codes == FULL).tolist():
                self._go_on(e)

    def driver(self, e: int) -> Driver:
        """The run of an episode, for its records. It is not to be advanced."""
        driver = self._drivers[e]
        if driver is None:
            raise UsageError("has no episode yet", expected="a call of reset() first")
        return driver


def _wide_enough(array: np.ndarray, columns: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, max(0, columns - array.shape[1]))))


def _first_tally(inputs: RunInputs) -> np.ndarray:
    cluster, arrival_s = inputs.cluster, inputs.requests.work["arrival_s"]
    unit_s = (cluster.fixed_s + cluster.unit_s).min(axis=1)
    served = unit_s[np.isfinite(unit_s)]
    tally = np.zeros(N_TALLIES)
    tally[SPAN_S] = arrival_s.max() if len(arrival_s) else 0.0
    tally[USUAL_S] = served.mean() if len(served) else 1.0
    tally[SLOTS] = cluster.slots.sum()
    return tally


class RequestEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Base of the environments of one run."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, runs: RequestRuns) -> None:
        self.runs = runs
        self.observation_space = spaces.Box(-1.0, 1.0, runs.observations.shape[1:], runs.observations.dtype)
        self.action_space = spaces.Discrete(runs.masks.shape[1])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode: of a seed drawn by `seed`, or of `options["seed"]`. Raises UsageError."""
        super().reset(seed=seed)
        given = (options or {}).get("seed")
        self.runs.begin([0], [self.runs.episodes.draw(self.np_random) if given is None else int(given)])
        return self.runs.observations[0].copy(), self._info()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Answer the present decision. An action that the mask forbids holds the request."""
        runs = self.runs
        runs.step(np.array([action], np.int64))
        code = runs.codes[0]
        return (
            runs.observations[0].copy(),
            float(runs.rewards[0]),
            bool(code == DONE),
            bool(code == REACHED),
            self._info(),
        )

    def action_masks(self) -> np.ndarray:
        """Which actions are allowed now, [actions] bool."""
        mask: np.ndarray = self.runs.masks[0].copy()
        return mask

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "seed": int(self.runs.seeds[0])}


class RequestVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Base of the environments of several runs. One that is over begins anew in the same step."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, num_envs: int, runs: RequestRuns) -> None:
        self.num_envs, self.runs = num_envs, runs
        shape = runs.observations.shape[1:]
        self.single_observation_space = spaces.Box(-1.0, 1.0, shape, runs.observations.dtype)
        self.single_action_space = spaces.Discrete(runs.masks.shape[1])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs: list[np.random.Generator] = []

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in every run; run e draws its seeds by `seed` + e, or `seed[e]`.

        `options["seeds"]`: scenario seeds of these episodes, [runs]. Raises UsageError.
        """
        if isinstance(seed, int) or not self._rngs:
            first = seed if isinstance(seed, int) else None
            seeds = [None if first is None else first + e for e in range(self.num_envs)]
            self._rngs = [np.random.default_rng(each) for each in seeds]
        if seed is not None and not isinstance(seed, int):
            self._rngs = [
                own if each is None else np.random.default_rng(each)
                for own, each in zip(self._rngs, seed, strict=True)
            ]
        given = (options or {}).get("seeds")
        drawn = [self.runs.episodes.draw(rng) for rng in self._rngs] if given is None else list(given)
        self.runs.begin(range(self.num_envs), drawn)
        return self.runs.observations.copy(), self._info()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Answer all present decisions, [runs]. Actions that the masks forbid hold their requests.

        `final_obs` of the info: the last observations of the runs that are over, which `_final_obs` tells.
        """
        runs = self.runs
        runs.step(np.asarray(actions, np.int64))
        rewards, ended, cut = runs.rewards.copy(), runs.codes == DONE, runs.codes == REACHED
        over = np.flatnonzero(ended | cut).tolist()
        final: dict[str, Any] = {}
        if over:
            final = {"final_obs": runs.observations.copy(), "_final_obs": ended | cut}
            runs.begin(over, [runs.episodes.draw(self._rngs[e]) for e in over])
        return runs.observations.copy(), rewards, ended, cut, self._info() | final

    def action_masks(self) -> np.ndarray:
        """Which actions are allowed now, [runs, actions] bool."""
        return self.runs.masks.copy()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "seed": self.runs.seeds.copy()}
