"""Parameters of a policy that sites search together: each tries the same candidates on its own workload.

As `trimtab tune`, with the mean over sites (or what the rule of the federation makes of them) in place of
one workload's score: rounds of an evolution strategy on the first half of each site's requests, the best
candidates on the next quarter, the best of these on the last one. A site tells how much worse each candidate
is than the policy as given, as a logarithm, and nothing else of its workload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import yaml

from trimtab.domain.artifact import Artifact
from trimtab.experiments.compare.task_pool import HERE
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.tuning.evolution import ROUNDS, Evolution
from trimtab.experiments.tuning.objective import Goal
from trimtab.experiments.tuning.parts import TRAINED, VALIDATED, Part, check_length
from trimtab.experiments.tuning.space import Space
from trimtab.experiments.tuning.tuning import (
    TESTED_SEEDS,
    TRAINED_SEEDS,
    VALIDATED_SEEDS,
    PartRuns,
    means_of,
    serves_as_many,
)
from trimtab.learn.federated.aggregation import Update
from trimtab.validation.tuned_policy import POLICY
from trimtab.version import __version__

POLICY_FILE: Final = "tuned.yaml"
_FINALISTS: Final = 4
_WORST: Final = 10.0  # a score for candidates that serve fewer requests: e^10 times as bad
_SEEDS: Final = {"train": TRAINED_SEEDS, "validation": VALIDATED_SEEDS, "test": TESTED_SEEDS}


@dataclass(frozen=True)
class PolicyProblem:
    """A policy, searched from the values that it is given with.

    Attributes:
        policy: as everywhere in trimtab.
        objective: as `trimtab tune --objective`.
        candidates: of the first of four rounds.
        seed: of the search and of all runs.
    """

    policy: str = "late-binding"
    objective: str = "mean s.t. p99<=+0%"
    candidates: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError for a policy without numbers to search, and for an objective that is none."""
        Space(self.policy)
        Goal.parsed(self.objective)

    def told(self) -> dict[str, Any]:
        """As `Problem.told`: candidates are the same only of the same release."""
        return {"kind": "policy", **asdict(self), "release": __version__}

    def rounds(self) -> int:
        """As `Problem.rounds`: the search, the choice, the test."""
        return len(ROUNDS) + 2

    def width(self, history: Sequence[Update]) -> int:
        """As `Problem.width`."""
        return len(self.asked(history))

    def asked(self, history: Sequence[Update]) -> list[str]:
        """The policies that sites try next."""
        evolution, space = Evolution(self._space, self.candidates, self.seed), self._space
        evolution.add(space.spec, space.start())
        named, ended = evolution.first(), dict[str, float]()
        for k in range(min(len(history), len(ROUNDS))):
            scores = {space.spec: 0.0, **self._scores(named, history[k])}
            if ROUNDS[k].of_requests == 1.0:
                ended |= scores
            if k + 1 < len(ROUNDS):
                named = [each for each in evolution.next(k + 1, scores) if each != space.spec]
        if len(history) < len(ROUNDS):
            return [each for each in named if each != space.spec]
        finalists = [each for each in _best(ended) if each != space.spec][:_FINALISTS]
        if len(history) == len(ROUNDS):
            return finalists
        return _best(self._scores(finalists, history[len(ROUNDS)]))[:1]

    def ask(self, history: Sequence[Update]) -> Artifact:
        """As `Problem.ask`: the policies, and the part of the requests."""
        k, part = len(history), {"begin": 0.0, "end": TRAINED, "seeds": "train"}
        if k < len(ROUNDS):
            part["end"] = TRAINED * ROUNDS[k].of_requests
        elif k == len(ROUNDS):
            part = {"begin": TRAINED, "end": VALIDATED, "seeds": "validation"}
        else:
            part = {"begin": VALIDATED, "end": 1.0, "seeds": "test"}
        return Artifact("ask", {}, {"policies": json.dumps(self.asked(history)), "part": json.dumps(part)})

    def result(self, history: Sequence[Update], provenance: Mapping[str, Any]) -> tuple[str, bytes]:
        """As `Problem.result`: a file of the policy; as it was given where no candidate was better."""
        (best,) = self.asked(history[: len(ROUNDS) + 1])
        chosen = self._scores(self.asked(history[: len(ROUNDS)]), history[len(ROUNDS)])[best]
        tested = float(history[-1].values[0])
        is_gain = chosen < 0.0
        content = {
            POLICY: best if is_gain else self._space.spec,
            "verdict": "gain" if is_gain else "nothing to gain",
            "best": best,
            "objective": self.objective,
            "score": {"validation": round(chosen, 6), "test": round(tested, 6)},
            "provenance": dict(provenance),
        }
        head = "# Written by `trimtab federate`. Give this file as a policy.\n"
        return POLICY_FILE, (head + yaml.safe_dump(content, sort_keys=False)).encode()

    @property
    def _space(self) -> Space:
        return Space(self.policy)

    def _scores(self, policies: Sequence[str], update: Update) -> dict[str, float]:
        """Combined scores; a candidate that no site tried is the worst."""
        values = np.where(update.weights > 0.0, update.values, _WORST)
        return dict(zip(policies, values.tolist(), strict=True))


def _best(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda policy: scores[policy])


class PolicySite:
    """A site that tries candidates on its own workload."""

    def __init__(self, problem: PolicyProblem, scenario: Scenario, *, jobs: int | None = 1) -> None:
        """Raises UsageError for a workload that is too short to split."""
        check_length(scenario)
        self._base, self._goal = Space(problem.policy).spec, Goal.parsed(problem.objective)
        self._runs = PartRuns(scenario, self._base, None, False, jobs, HERE, None)
        self._first = {"train": problem.seed}
        for part, before in (("validation", "train"), ("test", "validation")):
            self._first[part] = self._first[before] + _SEEDS[before]

    def answer(self, ask: Artifact) -> Update:
        """As `Site.answer`: the score of each candidate, and the requests that it rests on."""
        policies, part = json.loads(ask.meta["policies"]), json.loads(ask.meta["part"])
        first = self._first[part["seeds"]]
        found = self._runs.run(
            Part(part["begin"], part["end"]),
            list(dict.fromkeys([self._base, *policies])),
            range(first, first + _SEEDS[part["seeds"]]),
        )
        means = {policy: means_of(results) for policy, results in found.items()}
        base = means[self._base]
        scores = [
            min(_WORST, self._goal.score(means[each], base)) if serves_as_many(means[each], base) else _WORST
            for each in policies
        ]
        requests = (part["end"] - part["begin"]) * self._runs.scenario.n_requests()
        return Update(np.array(scores), np.full(len(scores), requests))
