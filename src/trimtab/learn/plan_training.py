"""Training of networks that make plans: by a teacher's plans in simulated runs, or by optimal schedules."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, ClassVar, Final

import numpy as np
import torch

from trimtab.domain.artifact import Artifact
from trimtab.learn.demonstrations import PERIOD_S, Demonstration, Teacher, demonstrated
from trimtab.learn.drawn_workloads import Floats, mapped
from trimtab.learn.methods.exchangeable_network import ExchangeableNetwork
from trimtab.learn.methods.plan_network import PlanNetwork, SequenceNetwork
from trimtab.learn.methods.pointer_network import RecurrentPointer
from trimtab.learn.methods.transformer_pointer import TransformerPointer
from trimtab.learn.small_schedules import MOST, copied, drawn_window, optimal_schedule, total_s
from trimtab.learn.weight_search import RULES, Method, Setting, Training
from trimtab.policies.learned.learned_matching import LearnedMatching
from trimtab.policies.shared.plan_features import N_PLAN_FEATURES, Window, follow, note_pairs
from trimtab.policies.shared.plan_networks import (
    PointerNetwork,
    TransformerNetwork,
    network_artifact,
    sequence,
)

_BATCH: Final = 32  # examples in an update
_PASSES: Final = 2  # over the demonstrations of a generation
_BATCHES, _JUDGED = 16, 4  # of instances in a generation; instances of each that the gap is measured on
_FEWEST, _SLOTS = 3, (2, 6)  # requests of an instance, and the range of its slots


class PlanTraining(Training):
    """A training of a plan's network by examples."""

    network: PlanNetwork

    def artifact(self, name: str) -> Artifact:
        """The weights so far."""
        return network_artifact(name, self.network.arrays(), self._meta())

    def _arrays(self) -> dict[str, Any]:
        return self.network.checkpoint()

    def _take(self, arrays: Mapping[str, Any]) -> None:
        self.network.restore(arrays)

    def _improve(self, chosen: list[int]) -> Floats:
        torch.set_num_threads(1)  # sums over several threads differ from run to run
        draw = np.random.default_rng((self.setting.seed, 3, len(self.history)))
        return self._learn(chosen, draw, 1.0 - len(self.history) / self.setting.generations)

    @abstractmethod
    def _learn(self, chosen: list[int], draw: np.random.Generator, left: float) -> Floats:
        """Make one generation; `left`: share of the training still to come."""


class ImitationTraining(PlanTraining):
    """A training of `learned-matching` by what a teacher would do in the states that the student reaches.

    Source: Stéphane Ross, Geoffrey Gordon, Drew Bagnell, "A reduction of imitation learning and structured
    prediction to no-regret online learning", AISTATS 2011, algorithm 3.1 with β = 1 in the first iteration
    and 0 later: the teacher acts in the first generation, which alone is behaviour cloning (Dean Pomerleau,
    "Efficient training of artificial neural networks for autonomous navigation", Neural Computation 3(1),
    1991); the student acts in the others.

    Deviations from the source: each iteration learns from its own demonstrations only, by some steps of
    gradient descent, as online learning without regret may, instead of from all so far. The last weights are
    kept, not the best on held-out states. The loss is the student's completion against `hungarian` in the
    runs of its demonstrations.
    """

    def __init__(self, setting: Setting, pool: Executor | None = None) -> None:
        """As `Training`."""
        super().__init__(setting, pool)
        self.network: ExchangeableNetwork = ExchangeableNetwork(setting.hidden, setting.seed)
        self._teacher: Teacher = "plans" if setting.method == "imitate-plans" else "schedules"

    def _learn(self, chosen: list[int], draw: np.random.Generator, left: float) -> Floats:
        s, many = self.setting, len(chosen)
        student, teacher_acts = (
            LearnedMatching(artifact=network_artifact("student", self.network.arrays(), {})),
            not self.history,
        )
        given = [s.workloads] * many, chosen, [student] * many, [self._teacher] * many, [teacher_acts] * many
        runs = mapped(self._pool, demonstrated, *given)
        base = self._of_rule(chosen, f"{RULES[s.policy]}(plan_period_s={PERIOD_S})")
        shown = [one for run in runs for one in run.demonstrations]
        for _ in range(_PASSES):
            order = draw.permutation(len(shown))
            for at in range(0, len(order), _BATCH):
                losses = [self._loss(shown[k]) for k in order[at : at + _BATCH].tolist()]
                self.network.descend(sum(losses) / len(losses), left)
        losses = [s.objective.loss(run.figures, base[i]) for i, run in zip(chosen, runs, strict=True)]
        return np.array([losses])

    def _loss(self, shown: Demonstration) -> Any:
        w = shown.seen
        x = np.zeros((*w.service_s.shape, N_PLAN_FEATURES))
        note_pairs(w, x)
        return self.network.loss(
            torch.from_numpy(x), torch.from_numpy(np.isfinite(w.service_s)), torch.from_numpy(shown.slot)
        )


class SequenceTraining(PlanTraining):
    """A training of `learned-pointer` or `learned-transformer` by optimal schedules of small instances.

    The network is shown the choices of the optimum in the order of their starts, each with those before it
    (teacher forcing: Ronald Williams, David Zipser, "A learning algorithm for continually running fully
    recurrent neural networks", Neural Computation 1(2), 1989). Every generation has new instances. The loss
    is the logarithm of its schedules' cost over the optimum, on instances that it has not seen.
    """

    loss_is: ClassVar[str] = "0 is the optimum"
    network: SequenceNetwork

    def __init__(self, setting: Setting, pool: Executor | None = None) -> None:
        """As `Training`."""
        super().__init__(setting, pool)
        is_rnn = setting.method == "rnn"
        made: Callable[[int, int], SequenceNetwork] = RecurrentPointer if is_rnn else TransformerPointer
        self.network = made(setting.hidden, setting.seed)
        self._compiled = PointerNetwork if is_rnn else TransformerNetwork

    def _learn(self, chosen: list[int], draw: np.random.Generator, left: float) -> Floats:
        gaps = []
        for _ in range(_BATCHES):
            n, m = int(draw.integers(_FEWEST, MOST + 1)), int(draw.integers(_SLOTS[0], _SLOTS[1] + 1))
            instances = [drawn_window(draw, n, m) for _ in range(_BATCH)]
            optima = [optimal_schedule(w) for w in instances]
            for w, best in zip(instances[:_JUDGED], optima[:_JUDGED], strict=True):
                gaps.append(math.log(self.total_s(w) / best.total_s))
            x = np.zeros((_BATCH, n, n, m, N_PLAN_FEATURES))
            for k, (w, best) in enumerate(zip(instances, optima, strict=True)):
                follow(copied(w), best.requests, best.slots, x[k])
            can = np.isfinite([w.service_s for w in instances])
            picked = [best.requests for best in optima], [best.slots for best in optima]
            given = (x, *map(np.array, picked), can)
            for _ in range(_PASSES):
                self.network.descend(self.network.loss(*map(torch.from_numpy, given)), left)
        return np.array([gaps])

    def total_s(self, w: Window) -> float:
        """Sum of completions of the network's schedule."""
        return total_s(w, *sequence(self._compiled(**self.network.arrays()), copied(w)))


def plan_training(method: Method) -> type[PlanTraining]:
    """The training of a method of plans."""
    return SequenceTraining if method in ("rnn", "transformer") else ImitationTraining
