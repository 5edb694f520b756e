"""Scores of nodes as the policy `learned-dispatch` makes them, so that trained weights are that policy's."""

from __future__ import annotations

from typing import Any, Final

import torch

from trimtab.domain.artifact import Floats
from trimtab.learn.environments.observations import N_NODE_COLUMNS, NODE_COLUMNS
from trimtab.learn.methods.learner import Network
from trimtab.policies.shared.features import N_FEATURES

LOAD, SLOWER, WAIT, SIZE = (
    [column.name for column in NODE_COLUMNS].index(name) for name in ("load", "slower", "wait", "size")
)
_LEAST: Final = 1e-6  # of a share's complement
_SCALE: Final = 10.0  # of scores at first: what a usual service more takes from the logarithm of a chance


class CorrectedScores(Network):
    """Scores of nodes from rows of `trimtab/Dispatch-v0`: state value − scale · size · (completion + c).

    Completion is the expected one, and c the correction of `compiled/dense.py`, both in best services; size
    is a best service in usual ones. So the highest score is the node that the policy chooses. The scale is
    learned. The value of the state, of the mean of all rows, changes no choice; a Q-network needs it (Wang et
    al., Dueling network architectures for deep reinforcement learning, ICML 2016, equation 7).
    """

    def __init__(self, start: Floats, fixed: Any, *, limit: float, seed: int) -> None:
        """A network of weights as `dense.forward` reads them.

        Args:
            start: the first weights, [weights].
            fixed: which features are not read, [features] bool.
            limit: the largest correction, best services.
            seed: of the network of the state's value.
        """
        super().__init__((N_NODE_COLUMNS,), 1, (32,), seed)
        self.correction = torch.nn.Parameter(torch.from_numpy(start).float())
        self.log_scale = torch.nn.Parameter(torch.tensor([_SCALE]).log())
        self.register_buffer("read", torch.from_numpy(~fixed).float())
        self.hidden, self.limit = (len(start) - N_FEATURES) // (N_FEATURES + 2), limit

    def weights(self) -> Floats:
        """The weights as `dense.forward` reads them, [weights]."""
        return self.correction.detach().double().numpy()

    @torch.no_grad()
    def normalise(self, targets: Any, share: float) -> Any:
        """See `Network`."""
        old = self.range[1].clone()
        found = super().normalise(targets, share)
        if old:
            self.log_scale.add_((old / self.range[1]).log())
        return found

    def forward(self, observations: Any) -> Any:
        """(n, nodes) scores of rows (n, nodes, columns)."""
        last: Any = self.of_all
        value = last(self.body(observations.mean(dim=-2)))
        rows = observations[..., :N_FEATURES] * self.read
        sizes = [self.hidden * N_FEATURES, self.hidden, self.hidden, N_FEATURES]
        hidden, bias, out, skip = self.correction.split(sizes)
        totals = rows @ hidden.view(self.hidden, N_FEATURES).T + bias
        correction = rows @ skip + torch.nn.functional.softsign(totals) @ out
        shares = observations[..., [LOAD, WAIT, SIZE]]
        load, wait, size = (shares / (1 - shares).clamp(min=_LEAST)).unbind(dim=-1)
        slower = observations[..., SLOWER]
        there = (1 + slower) / (1 - slower).clamp(min=_LEAST)
        cost = load + wait + there + correction.clamp(-self.limit, self.limit)
        return value - self.log_scale.exp() * size * cost
