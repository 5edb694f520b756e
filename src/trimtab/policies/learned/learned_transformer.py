"""A schedule of waiting requests that a transformer writes, one pair after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trimtab.policies.learned.learned_pointer import LearnedPointer
from trimtab.policies.shared.plan_networks import TransformerNetwork, network_of, transformer_shapes


@dataclass(frozen=True)
class LearnedTransformer(LearnedPointer):
    """Bind the first request of each slot in a schedule that a transformer writes.

    Idea
        As `learned-pointer`, with another network: held requests and slots are tokens, each the mean of its
        features over the other side. Two layers of self-attention encode them. A causal decoder attends to
        the choices made so far, and points to the next pair. `trimtab learn train --method transformer` makes
        weights, from the optimal schedules of small instances. Without weights it is `hungarian`.
    Source
        Ashish Vaswani and others: "Attention is all you need", NeurIPS 2017; for routes, which are sequences
        of choices as well: Wouter Kool, Herke van Hoof, Max Welling: "Attention, learn to solve routing
        problems!", ICLR 2019.
    Reads
        What `learned-pointer` reads.
    Cost
        O(nodes + bindings) a decision; a plan is O((requests + slots)² · width + requests² · slots · width).
    When it wins / loses
        As `learned-pointer`, whose schedules of small instances it is compared with in
        docs/benchmarks/imitation.md.
    Deviations from the source
        Two heads and no encoding of positions, as the second source has it: the features tell how long a
        request has waited. Tokens are scaled before each layer by the root of their mean square. Softsign in
        the wide layer and in the pointer, which reads the pair's features besides the two tokens. Training
        shows the optimum only, instead of REINFORCE.
    """

    name: ClassVar[str] = "learned-transformer"

    def network(self) -> TransformerNetwork:  # type: ignore[override]
        """The network of the weights. Raises UsageError for those of another policy or version."""
        return network_of(self.artifact, TransformerNetwork, transformer_shapes, self.name)
