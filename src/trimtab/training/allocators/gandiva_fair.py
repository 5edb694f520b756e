"""Gandiva-Fair: every job gets the same share of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState


@dataclass(frozen=True)
class GandivaFair(GavelAllocator):
    """Each of n jobs runs for GPUs / n of the time on each type, at most all of it.

    Idea
        Equal shares of the GPUs, whatever the jobs' sizes and speeds. Gavel's mechanism gives rounds.
    Source
        Chaudhary et al., Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep Learning,
        EuroSys 2020; as "gandiva_fair" of the simulator of Zheng et al., Shockwave, NSDI 2023.
    Reads
        gpus_requested, work_left, goodput (for the length of rounds).
    Cost
        O(jobs log jobs) a round.
    When it wins / loses
        No job waits long. It knows neither speeds nor sizes, so mean completion times are longer.
    Deviations from the source
        Trading of GPU types between users is left out, as in that simulator.
    """

    name: ClassVar[str] = "gandiva-fair"

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """GPUs over jobs."""
        share = np.tile(state.type_gpus / len(state.gpus), (len(state.gpus), 1))
        equal: Floats = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)
        return equal
