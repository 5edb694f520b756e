"""Training of a policy's weights generation by generation, by evolution strategies on simulated runs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.dense import n_weights
from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Memory, Plan, View, can_take, needs_of
from trimtab.errors import UsageError
from trimtab.learn.drawn_workloads import Figures, Floats, Objective, Workloads, figures_of, mapped, run_of
from trimtab.learn.methods.evolution_strategies import EvolutionStrategies
from trimtab.learn.similarity import STATISTICS_KEY, statistics_of, told_statistics
from trimtab.policies import find
from trimtab.policies.learned.learned_dispatch import LearnedDispatch
from trimtab.policies.learned.learned_matching import LearnedMatching
from trimtab.policies.learned.learned_pointer import LearnedPointer
from trimtab.policies.learned.learned_residual import LearnedResidual
from trimtab.policies.learned.learned_transformer import LearnedTransformer
from trimtab.policies.shared.features import (
    FEATURES,
    N_FEATURES,
    OF_GROUP,
    OF_NODE,
    features_memory,
    fill_features,
)
from trimtab.policies.shared.learned_score import CorrectedPolicy, vector_of, weights_artifact
from trimtab.version import versions

PolicyName = Literal[
    "learned-residual", "learned-dispatch", "learned-matching", "learned-pointer", "learned-transformer"
]
Method = Literal["es", "a2c", "ppo", "dqn", "imitate-plans", "imitate-schedules", "rnn", "transformer"]
CORRECTED: Final[Mapping[str, type[CorrectedPolicy]]] = {
    "learned-residual": LearnedResidual,
    "learned-dispatch": LearnedDispatch,
}
POLICIES: Final[Mapping[PolicyName, Callable[..., Policy]]] = {
    "learned-residual": LearnedResidual,
    "learned-dispatch": LearnedDispatch,
    "learned-matching": LearnedMatching,
    "learned-pointer": LearnedPointer,
    "learned-transformer": LearnedTransformer,
}
RULES: Final[Mapping[str, str]] = {
    "learned-residual": "late-binding",
    "learned-dispatch": "least-expected-completion",
    "learned-matching": "hungarian",
    "learned-pointer": "hungarian",
    "learned-transformer": "hungarian",
}


class Trains(NamedTuple):
    """What a method trains, the first policy by default, and what else it takes by default."""

    policies: tuple[PolicyName, ...]
    objective: str = "mean"
    hidden: int = 8
    is_of_plans: bool = False  # by examples of plans, not by what decisions lead to


METHODS: Final[Mapping[Method, Trains]] = {
    "es": Trains(("learned-residual", "learned-dispatch"), "mean+0.5*tail"),
    "a2c": Trains(("learned-dispatch",)),
    "ppo": Trains(("learned-dispatch",)),
    "dqn": Trains(("learned-dispatch",)),
    "imitate-plans": Trains(("learned-matching",), hidden=16, is_of_plans=True),
    "imitate-schedules": Trains(("learned-matching",), hidden=16, is_of_plans=True),
    "rnn": Trains(("learned-pointer",), hidden=16, is_of_plans=True),
    "transformer": Trains(("learned-transformer",), hidden=16, is_of_plans=True),
}
POOL: Final = 96  # workloads to train on
_EACH: Final = 6  # of them in a generation
_RECORDED: Final = 24  # of them for the ranges of features
_SLACK_FRAC, _SLACK = 0.05, 0.02  # by which the range of a feature is widened: of itself, and besides
_WIDE: Final = np.array([[feature.least, feature.most] for feature in FEATURES])


@dataclass(frozen=True)
class Setting:
    """All that decides the result of a training."""

    policy: PolicyName
    objective: Objective
    workloads: Workloads
    generations: int = 60
    pairs: int = 12
    hidden: int = 8
    sigma: float = 0.06
    rate: float = 0.03
    seed: int = 0
    method: Method = "es"
    decisions: int = 51_200  # in a generation, by reinforcement learning
    start: Artifact = NO_ARTIFACT  # weights to start from

    def __post_init__(self) -> None:
        """Refuse what the method does not train. Raises UsageError."""
        trains = METHODS[self.method]
        if self.policy not in trains.policies:
            expected = f"{' or '.join(trains.policies)} with --method {self.method}"
            by = [name for name, others in METHODS.items() if self.policy in others.policies]
            expected += f", or --method {by[0]}"
            raise UsageError("is not trained so", field="--policy", value=self.policy, expected=expected)
        if self.method != "es" and str(self.objective) != "mean":
            problem = "is not what examples show" if trains.is_of_plans else "is no reward"
            expected = f"mean with --method {self.method}, or --method es"
            raise UsageError(problem, field="--objective", value=str(self.objective), expected=expected)
        if trains.is_of_plans and (self.hidden < 2 or self.hidden % 2):
            raise UsageError("has no two halves", field="--hidden", value=self.hidden, expected="2, 4, 6, …")
        if trains.is_of_plans and self.start:
            expected = f"no weights to start from with --method {self.method}"
            raise UsageError("is not read", field="start", value=self.start, expected=expected)
        if self.method in ("rnn", "transformer") and self.workloads.scenario is not None:
            expected = f"no scenario with --method {self.method}, which learns from small instances"
            raise UsageError("is not read", field="SCENARIO", value=str(self.workloads), expected=expected)

    @property
    def samples_each(self) -> int:
        """Samples of a generation: simulated runs by evolution strategies, decisions by the others."""
        return 2 * self.pairs * _EACH if self.method == "es" else self.decisions

    def told(self) -> dict[str, Any]:
        """The values for a file."""
        others = ("decisions",) if self.method == "es" else ("pairs", "sigma", "rate")
        if METHODS[self.method].is_of_plans:
            others = (*others, "decisions")
        apart = ("workloads", "objective", "method", "start", *others)
        own = {key: value for key, value in vars(self).items() if key not in apart}
        scenario = self.workloads.scenario
        return {
            "method": self.method,
            **own,
            "objective": str(self.objective),
            "workloads": str(self.workloads),
            "scenario_hash": None if scenario is None else scenario.hash(),
            "requests": self.workloads.requests,
            "augment": str(self.workloads.augmentation) or None,
            "start": self.start.sha256 if self.start else None,
        }

    def first_weights(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Weights that training starts with, and which of them it leaves as they are, [weights] each.

        Without weights to start from they change nothing. Those stay at 0 then that read what nodes of a
        group differ in: so policies may use an index of waits.
        """
        start, is_own = _first_weights(self.hidden, self.seed)
        return (vector_of(self.start) if self.start else start), is_own


class Generation(NamedTuple):
    """One generation of a training: losses of its candidates, or of the weights at its end."""

    number: int
    loss: float  # mean over candidates and workloads; below 0 is better than the rule
    best: float  # of the best candidate, mean over workloads


class Training(ABC):
    """A training that goes on generation by generation."""

    loss_is: ClassVar[str] = "below 0 is better"  # of the last generations, in words

    def __init__(self, setting: Setting, pool: Executor | None = None) -> None:
        """A training of a setting; `pool`: processes that simulate."""
        self.setting, self._pool = setting, pool
        self.history: list[Generation] = []
        self._base: dict[int, Figures] = {}

    @property
    def is_over(self) -> bool:
        """Whether all generations were made."""
        return len(self.history) >= self.setting.generations

    def step(self) -> Generation:
        """Make one generation."""
        draw = np.random.default_rng((self.setting.seed, 2, len(self.history)))
        table = self._improve(sorted(draw.choice(POOL, _EACH, replace=False).tolist()))
        done = Generation(len(self.history) + 1, float(table.mean()), float(table.mean(axis=1).min()))
        self.history.append(done)
        return done

    def _of_rule(self, chosen: list[int], rule: str) -> Mapping[int, Figures]:
        """Figures of a rule on the chosen workloads, which it serves once in a training."""
        new = [i for i in chosen if i not in self._base]
        found = mapped(
            self._pool, figures_of, [self.setting.workloads] * len(new), new, [find(rule)] * len(new)
        )
        self._base |= zip(new, found, strict=True)
        return self._base

    @abstractmethod
    def artifact(self, name: str) -> Artifact:
        """The weights so far."""

    @abstractmethod
    def _improve(self, chosen: list[int]) -> Floats:
        """Make one generation; losses on the `chosen` workloads, [candidates, workloads]."""

    @abstractmethod
    def _arrays(self) -> dict[str, Any]:
        """Arrays by name that the method goes on from."""

    @abstractmethod
    def _take(self, arrays: Mapping[str, Any]) -> None:
        """Go on from what `_arrays` gave."""

    def _meta(self) -> dict[str, str]:
        """What an artifact says of its training."""
        told = {**self.setting.told(), "generations": len(self.history)}
        return {
            "policy": self.setting.policy,
            "training": json.dumps(told),
            "versions": json.dumps(versions()),
        }

    def checkpoint(self) -> dict[str, Any]:
        """Arrays by name, to go on from."""
        curve = np.array([tuple(each) for each in self.history]).reshape(-1, len(Generation._fields))
        return {**self._arrays(), "curve": curve, "setting": np.array(json.dumps(self.setting.told()))}

    def restore(self, arrays: Mapping[str, Any], file: str) -> None:
        """Go on from a checkpoint; by evolution strategies of another number of generations too.

        Raises UsageError.
        """
        told = json.loads(str(arrays["setting"]))
        mine = json.loads(json.dumps(self.setting.told()))
        for key in mine.keys() - ({"generations"} if self.setting.method == "es" else set()):
            if told.get(key) != mine[key]:
                expected = f"{mine[key]!r}, or --no-resume"
                raise UsageError(
                    "was trained otherwise", file=file, field=key, value=told.get(key), expected=expected
                )
        curve = arrays["curve"]
        self.history = [Generation(int(row[0]), float(row[1]), float(row[2])) for row in curve]
        self._take(arrays)


class WeightTraining(Training):
    """A training of weights that correct a rule, judged by simulated runs."""

    @abstractmethod
    def _weights(self) -> Floats:
        """The weights so far as `dense.forward` reads them, [weights]."""

    def _table(self, chosen: list[int], candidates: Floats) -> Floats:
        """Losses of candidates [candidates, weights] on workloads, [candidates, workloads]."""
        s = self.setting
        base = self._of_rule(chosen, RULES[s.policy])
        rows = [(i, self._decider(weights)) for i in chosen for weights in candidates]
        made = mapped(self._pool, figures_of, [s.workloads] * len(rows), *zip(*rows, strict=True))
        losses = [s.objective.loss(f, base[i]) for f, (i, _) in zip(made, rows, strict=True)]
        return np.reshape(losses, (len(chosen), len(candidates))).T

    def artifact(self, name: str) -> Artifact:
        """The weights so far, with the ranges of features that they were trained on."""
        s, weights = self.setting, self._weights()
        recorder = Decider.of(_RECORDERS[s.policy](artifact=_unranged(weights), in_range=False))
        columns = [s.workloads] * _RECORDED, range(_RECORDED), [recorder] * _RECORDED
        rows = mapped(self._pool, _ranges, *columns)
        least, most = np.min([r[0] for r in rows], axis=0), np.max([r[1] for r in rows], axis=0)
        slack = _SLACK_FRAC * (most - least) + _SLACK
        statistics = told_statistics(statistics_of(s.workloads, range(_RECORDED)))
        meta = {**self._meta(), STATISTICS_KEY: statistics}
        return weights_artifact(name, weights, np.stack([least - slack, most + slack], axis=1), meta)

    def _decider(self, weights: Floats) -> Decider:
        return Decider.of(CORRECTED[self.setting.policy](artifact=_unranged(weights), in_range=False))


def _first_weights(hidden: int, seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Weights that change nothing, and which of them read what nodes of a group differ in, [weights] each."""
    draw = np.random.default_rng((seed, 1))
    n = n_weights(N_FEATURES, hidden)
    start, is_own = np.zeros(n), np.zeros(n, np.bool_)
    start[: hidden * N_FEATURES] = draw.normal(0.0, 0.4, hidden * N_FEATURES)
    own = slice(OF_GROUP, OF_GROUP + OF_NODE)
    is_own[: hidden * N_FEATURES].reshape(hidden, N_FEATURES)[:, own] = True
    is_own[-N_FEATURES:][own] = True
    start[is_own] = 0.0
    return start, is_own


class WeightSearch(WeightTraining):
    """A training by evolution strategies."""

    def __init__(self, setting: Setting, pool: Executor | None = None) -> None:
        """As `WeightTraining`."""
        super().__init__(setting, pool)
        start, is_own = setting.first_weights()
        self._search = EvolutionStrategies(
            start, pairs=setting.pairs, sigma=setting.sigma, rate=setting.rate, seed=setting.seed
        )
        self._search.hold(is_own)

    def _weights(self) -> Floats:
        return self._search.result

    def _improve(self, chosen: list[int]) -> Floats:
        table = self._table(chosen, self._search.candidates())
        self._search.tell(table)
        return table

    def _arrays(self) -> dict[str, Any]:
        return dict(self._search.checkpoint()["arrays"])

    def _take(self, arrays: Mapping[str, Any]) -> None:
        self._search.restore({"arrays": arrays, "state": {"generation": len(self.history)}})


def _unranged(weights: Floats) -> Artifact:
    """Weights for training, where ranges do not count yet."""
    return weights_artifact("trained", weights, _WIDE, {})


_rank_residual, _rank_dispatch = LearnedResidual.dispatch, LearnedDispatch.dispatch
_PLACES = 2  # at the end of `memory.params`: where the recorder's numbers begin, and the slots


@helper
def _record(view: View, work: Any, memory: Memory) -> None:
    """Widen the ranges by the features of all nodes that can take the work."""
    params, floats, needs = memory.params, memory.floats, needs_of(work)
    at, n = int(params[len(params) - _PLACES]), view.context.n_nodes
    if fill_features(view, work, floats, at, params[len(params) - 1]) == 0:
        return
    rows = at + view.fixed_s.shape[1]
    ranges = rows + n * N_FEATURES
    for j in range(n):
        row = rows + j * N_FEATURES
        if can_take(view, needs, j):
            for k in range(N_FEATURES):
                floats[ranges + k] = min(floats[ranges + k], floats[row + k])
                floats[ranges + N_FEATURES + k] = max(floats[ranges + N_FEATURES + k], floats[row + k])


def _with_room(made: Memory, cluster: Cluster, tail: int) -> Memory:
    """A memory with room for the recorder before the last `tail` numbers of `floats`."""
    at = len(made.floats) - tail
    own = [
        *features_memory(cluster, cluster.n_nodes),
        *np.full(N_FEATURES, np.inf),
        *np.full(N_FEATURES, -np.inf),
    ]
    floats = np.concatenate([made.floats[:at], own, made.floats[at:]])
    return made._replace(params=np.append(made.params, [at, cluster.slots.sum()]), floats=floats)


@dataclass(frozen=True)
class _RecordedResidual(LearnedResidual):
    def init(self, cluster: Cluster) -> Memory:
        return _with_room(super().init(cluster), cluster, len(features_memory(cluster, 1)))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        count = _rank_residual(view, plan, work, memory, draws, ranking)
        _record(view, work, memory)
        return int(count)


@dataclass(frozen=True)
class _RecordedDispatch(LearnedDispatch):
    def init(self, cluster: Cluster) -> Memory:
        made = super().init(cluster)
        rows = 1 if made.params[0] == 1.0 else cluster.n_nodes
        return _with_room(made, cluster, len(features_memory(cluster, rows)))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        count = _rank_dispatch(view, plan, work, memory, draws, ranking)
        _record(view, work, memory)
        return int(count)


_RECORDERS: Final[Mapping[str, type[CorrectedPolicy]]] = {
    "learned-residual": _RecordedResidual,
    "learned-dispatch": _RecordedDispatch,
}


def _ranges(workloads: Workloads, i: int, decider: Decider) -> tuple[Floats, Floats]:
    """The least and the most of each feature, [features] each, in a run on workload i."""
    inputs, memory = workloads.inputs(i), run_of(workloads, i, decider).state.memories[0]
    at = int(memory.params[-_PLACES]) + len(features_memory(inputs.cluster, inputs.cluster.n_nodes))
    return memory.floats[at : at + N_FEATURES], memory.floats[at + N_FEATURES : at + 2 * N_FEATURES]
