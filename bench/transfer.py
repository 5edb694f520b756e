"""`python -m bench.transfer`: weights trained on some clusters, on clusters of other families; its page.

    python -m bench.transfer           train and judge what bench/transfer.json lacks, save after each target
    python -m bench.transfer --docs    only the page

All of it takes five CPU minutes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from bench.transfer_choice import ANEW
from bench.transfer_page import page
from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.domain.policy import Decider
from trimtab.experiments.scenario import Scenario
from trimtab.learn.drawn_workloads import Figures, Objective, Workloads, figures_of, processes
from trimtab.learn.generated_clusters import generated_cluster
from trimtab.learn.judgement import UNSEEN
from trimtab.learn.similarity import similarity, source_statistics, statistics_of
from trimtab.learn.weight_search import POLICIES, RULES, Setting, WeightSearch
from trimtab.policies import find
from trimtab.policies.shared.features import FEATURES
from trimtab.policies.shared.learned_score import weights_artifact

RESULTS, PAGE = ROOT / "bench" / "transfer.json", ROOT / "docs" / "benchmarks" / "transfer.md"
POLICY: Final = "learned-dispatch"
OBJECTIVE: Final = Objective.parsed("mean+0.5*tail")
JUDGED_BY: Final = (OBJECTIVE, Objective.parsed("mean"), Objective.parsed("p99"))
RANGES: Final = np.array([[feature.least, feature.most] for feature in FEATURES])
REQUESTS: Final = 300
FAMILIES: Final = {  # title → nodes, load
    "8 or 12 nodes, load 0.6": ((8, 12), 0.6),
    "8 or 12 nodes, load 1.0": ((8, 12), 1.0),
    "32 or 48 nodes, load 0.6": ((32, 48), 0.6),
    "32 or 48 nodes, load 1.0": ((32, 48), 1.0),
}
OTHERS: Final = 10_000  # number of a target's first cluster: those of sources come before
JUDGED: Final = range(UNSEEN, UNSEEN + 16)  # clusters of a target that no training draws
MARKS: Final[tuple[int, ...]] = (0, 1, 2, 3, 5, 7, 10, 14, 20)  # generations, to judge after
TRAINED: Final = 30  # generations of a source
BUDGET: Final = 10  # generations of a fine-tuning, and of what it is compared with


@dataclass(frozen=True)
class Family(Workloads):
    """Clusters of one family; those of a target are other ones than those of a source."""

    first: int = 0

    @functools.lru_cache(maxsize=256)  # noqa: B019 - as that of `Workloads`
    def scenario_of(self, i: int) -> Scenario:
        """The scenario of workload i."""
        nodes = int(np.random.default_rng(self.first + i).choice(self.nodes))
        return generated_cluster(self.first + i, self.requests, nodes=nodes, load=self.load)


def family(title: str, first: int = 0) -> Family:
    """The family of this title."""
    nodes, load = FAMILIES[title]
    return Family(requests=REQUESTS, nodes=nodes, load=load, first=first)


def training(
    workloads: Workloads, generations: int, seed: int, start: Artifact = NO_ARTIFACT
) -> WeightSearch:
    """A training; all differ by these alone."""
    return WeightSearch(Setting(POLICY, OBJECTIVE, workloads, generations, 6, seed=seed, start=start))


def source(title: str) -> Artifact:
    """Weights trained on clusters of a family."""
    search = training(family(title), TRAINED, 0)
    while not search.is_over:
        search.step()
    return search.artifact(title)


def of_rule(title: str) -> list[Figures]:
    """What the rule without weights gives on each unseen cluster of a target."""
    return [figures_of(family(title, OTHERS), i, find(RULES[POLICY])) for i in JUDGED]


def judged(title: str, weights: Artifact, rule: list[Figures], **guard: Any) -> list[list[float]]:
    """Of each unseen cluster: loss, and logarithms of the ratios of mean and p99 to those of the rule."""
    policy, target = Decider.of(POLICIES[POLICY](artifact=weights, **guard)), family(title, OTHERS)
    pairs = [(figures_of(target, i, policy), base) for i, base in zip(JUDGED, rule, strict=True)]
    return [[round(objective.loss(*pair), 5) for objective in JUDGED_BY] for pair in pairs]


def curve(title: str, search: WeightSearch, rule: list[Figures]) -> dict[str, list[list[float]]]:
    """Generation → `judged` of the weights after it, without a guard."""
    found: dict[str, list[list[float]]] = {}
    while True:
        number = len(search.history)
        if number in MARKS:
            weights = weights_artifact("w", search.checkpoint()["result"], RANGES, {})
            found[str(number)] = judged(title, weights, rule, in_range=False)
        if search.is_over:
            return found
        search.step()


def on_target(title: str, weights: Artifact | None) -> dict[str, Any]:
    """What training anew gives on a target's family, or what weights give that were trained on another."""
    begun_s, target, rule = time.process_time(), family(title, OTHERS), of_rule(title)
    if weights is None:
        found: dict[str, Any] = {"curve": curve(title, training(target, MARKS[-1], 1), rule)}
    else:
        told = statistics_of(target, range(24))
        found = {
            "similarity": similarity(source_statistics(weights), told).to_dict(),
            "as_is": judged(title, weights, rule),
            "curve": curve(title, training(target, BUDGET, 1, weights), rule),
        }
    return {**found, "cpu_s": round(time.process_time() - begun_s, 1)}


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.transfer", __doc__).parse_args(given).docs:
        figures: dict[str, Any] = saved_figures(RESULTS) if RESULTS.exists() else {"targets": {}}
        figures |= {"machine": machine(), "versions": versions()}
        figures["setting"] = {
            "requests": REQUESTS,
            "judged": len(JUDGED),
            "trained": TRAINED,
            "budget": BUDGET,
            "samples_each": training(family(next(iter(FAMILIES))), 1, 0).setting.samples_each,
        }
        rows = [(name, title) for title in FAMILIES for name in (ANEW, *FAMILIES)]
        todo = [row for row in rows if row[0] not in figures["targets"].setdefault(row[1], {})]
        needed = [name for name in FAMILIES if any(name == row[0] for row in todo)]
        with processes(2) as pool:
            assert pool is not None
            sources = dict(zip(needed, pool.map(source, needed), strict=True))
            made = pool.map(on_target, [title for _, title in todo], [sources.get(name) for name, _ in todo])
            for (name, title), found in zip(todo, made, strict=True):
                figures["targets"][title][name] = found
                save_figures(RESULTS, figures)
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    from bench import transfer  # by its name, so that other processes find its functions

    transfer.main()
