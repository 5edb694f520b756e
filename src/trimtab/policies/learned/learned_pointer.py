"""A schedule of waiting requests that a recurrent pointer network writes, one pair after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.domain.cluster import Floats, Ints
from trimtab.domain.view import View
from trimtab.policies.resource_aware.hungarian import Hungarian
from trimtab.policies.shared.plan_features import window_of
from trimtab.policies.shared.plan_networks import (
    PointerNetwork,
    first_of_slots,
    network_of,
    pointer_shapes,
    sequence,
)

MOST_REQUESTS, MOST_SLOTS = 24, 48  # that one plan looks at


@dataclass(frozen=True)
class LearnedPointer(Hungarian):
    """Bind the first request of each slot in a schedule that a recurrent pointer network writes.

    Idea
        As `hungarian`, but a schedule of what waits is made, by which a slot serves one request after
        another. A gated recurrent unit reads the held requests in the order of the queue, each as the mean of
        its features (`policies/shared/plan_features.py`) over the slots. A second one writes: a pointer
        scores every open request with every slot, the best pair is appended to the slot's schedule, and is
        the unit's next input. The features of what the choice changes are computed anew. The first request of
        each slot is bound to it. `trimtab learn train --method rnn` makes weights, from the optimal schedules
        of small instances. Without weights it is `hungarian`.
    Source
        Oriol Vinyals, Meire Fortunato, Navdeep Jaitly: "Pointer networks", NeurIPS 2015; the unit: Kyunghyun
        Cho and others: "Learning phrase representations using RNN encoder–decoder for statistical machine
        translation", EMNLP 2014.
    Reads
        What `hungarian` reads, of the first 24 held requests and the 48 slots that are free soonest.
    Cost
        O(nodes + bindings) a decision; a plan is O(requests² · slots · width).
    When it wins / loses
        It sees what a model's load is worth to the requests behind, which a matching of one request a slot
        does not, and its schedules of small instances are nearer to the optimum. It minimises the sum of
        completions of what waits now, so large requests wait long, and it was trained on windows far smaller
        than those of a large cluster: docs/benchmarks/imitation.md.
    Deviations from the source
        A gated recurrent unit instead of an LSTM, softsign instead of tanh and the logistic function, so that
        its results have the same bits everywhere. The pointer names a pair, and reads its features besides
        the two states. Training shows the optimum only (no beam search, no sampling).
    """

    name: ClassVar[str] = "learned-pointer"
    artifact: Artifact = NO_ARTIFACT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.artifact:
            self.network()

    def network(self) -> PointerNetwork:
        """The network of the weights. Raises UsageError for those of another policy or version."""
        return network_of(self.artifact, PointerNetwork, pointer_shapes, self.name)

    def match(self, view: View, waiting: Any, node: Ints, free_s: Floats) -> Ints:
        """By the network, where there are weights."""
        if not self.artifact:
            return super().match(view, waiting, node, free_s)
        seen = window_of(view, waiting[:MOST_REQUESTS], node[:MOST_SLOTS], free_s[:MOST_SLOTS])
        return first_of_slots(*sequence(self.network(), seen), len(seen.best_s))
