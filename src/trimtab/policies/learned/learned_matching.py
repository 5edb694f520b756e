"""A matching of waiting requests to slots that a set network makes, instead of the solver of Hungarian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.domain.cluster import Floats, Ints
from trimtab.domain.view import View
from trimtab.policies.resource_aware.hungarian import Hungarian
from trimtab.policies.shared.plan_features import window_of
from trimtab.policies.shared.plan_networks import SetNetwork, matched, network_of, set_scores, set_shapes

MOST_REQUESTS, MOST_SLOTS = 64, 128  # that one plan looks at


@dataclass(frozen=True)
class LearnedMatching(Hungarian):
    """Match waiting requests to slots by a set network that imitates plans made with known sizes.

    Idea
        As `hungarian`, but a network matches. Every pair of held request and slot that becomes free has the
        features of `policies/shared/plan_features.py`. Two layers pass them on, each with the means of the
        request, of the slot and of all, so that the order of requests and nodes changes nothing and one set
        of weights takes any number of both. A softmax over a request's slots and being left out gives
        chances. Likely pairs choose first; a request that is likelier left out is. `trimtab learn train`
        makes weights with `--method imitate-plans`, from optimal matchings, and `--method imitate-schedules`,
        from schedules that know what comes, both with true sizes, which the network does not see. Without
        weights it is `hungarian`.
    Source
        Jason Hartford, Devon Graham, Kevin Leyton-Brown, Siamak Ravanbakhsh: "Deep models of interactions
        across sets", ICML 2018 (exchangeable matrix layers); imitation: Stéphane Ross, Geoffrey Gordon, Drew
        Bagnell: "A reduction of imitation learning and structured prediction to no-regret online learning",
        AISTATS 2011.
    Reads
        What `hungarian` reads, of the first 64 held requests and the 128 slots that are free soonest.
    Cost
        O(nodes + bindings) a decision; a plan is O(requests · slots · width²).
    When it wins / loses
        In docs/benchmarks/imitation.md it is behind `hungarian` and `late-binding` in the loop: what its
        teachers gain there by knowing true sizes is little, and its errors cost more. Imitating schedules, it
        makes better plans of small instances than a matching does. It learns nothing of a single request's
        size that the estimate does not tell.
    Deviations from the source
        Softsign instead of leaky ReLU, so that its results have the same bits everywhere, and no dropout. The
        source completes matrices; here the output is a choice in each row. What is left out waits at the
        host, which offers it idle nodes as `hungarian` does.
    """

    name: ClassVar[str] = "learned-matching"
    artifact: Artifact = NO_ARTIFACT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.artifact:
            self.network()

    def network(self) -> SetNetwork:
        """The network of the weights. Raises UsageError for those of another policy or version."""
        return network_of(self.artifact, SetNetwork, set_shapes, self.name)

    def match(self, view: View, waiting: Any, node: Ints, free_s: Floats) -> Ints:
        """By the network, where there are weights."""
        if not self.artifact:
            return super().match(view, waiting, node, free_s)
        seen = window_of(view, waiting[:MOST_REQUESTS], node[:MOST_SLOTS], free_s[:MOST_SLOTS])
        return matched(*set_scores(self.network(), seen))
