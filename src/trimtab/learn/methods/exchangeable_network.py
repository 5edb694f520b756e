"""Scores of pairs of requests and slots that do not depend on the order of either.

Source
    Jason Hartford, Devon Graham, Kevin Leyton-Brown, Siamak Ravanbakhsh: "Deep models of interactions across
    sets", ICML 2018, equation 4: a layer reads each element, the means of its row and its column, and the
    mean of all.
Deviations from the source
    Softsign instead of leaky ReLU. Two layers; a row's outputs compete with being left out in a softmax.
"""

from __future__ import annotations

from typing import Any

import torch

from trimtab.learn.methods.learner import masked
from trimtab.learn.methods.plan_network import PlanNetwork
from trimtab.policies.shared.plan_networks import set_shapes


class ExchangeableNetwork(PlanNetwork):
    """The set network of `learned-matching`, for training."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(set_shapes(width), seed)

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Scores of pairs (requests, slots) and of being left out (requests), of (…, features)."""
        hidden = x
        for layer in ("first", "second"):
            hidden = self._layer(hidden, self.of[layer], self.of[f"{layer}_bias"])
        left_out = hidden.mean(dim=1) @ self.of["left_out"] + self.of["left_out_bias"]
        return hidden @ self.of["score"], left_out

    def loss(self, x: Any, can: Any, slot: Any) -> Any:
        """Mean negative log likelihood of the slots of requests [requests], -1 = left out.

        `can` (requests, slots): which pairs can be served.
        """
        scores, left_out = self(x)
        both = torch.cat([masked(scores, can), left_out[:, None]], dim=1)
        return torch.nn.functional.cross_entropy(both, torch.where(slot < 0, scores.shape[1], slot))

    def _layer(self, x: Any, matrices: Any, bias: Any) -> Any:
        row, column = x.mean(dim=1, keepdim=True), x.mean(dim=0, keepdim=True)
        whole = row.mean(dim=0, keepdim=True)
        parts = (x, row, column, whole)
        total = sum(part @ matrix for part, matrix in zip(parts, matrices, strict=True))
        return torch.nn.functional.softsign(total + bias)
