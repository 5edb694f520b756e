"""Muon: momentum whose matrices are made orthogonal before they are applied.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), from memory.
torch.optim.Muon computes in bfloat16, which processors without bfloat16 units do four times slower than the
single precision used here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Bring all singular values near 1 by Newton-Schulz iterations of the fifth degree."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal and scaled to steps like Adam's. Convolutions count too."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["mean"] = torch.zeros_like(matrix)
                mean = state["mean"].lerp_(matrix.grad, 1 - group["momentum"])
                step = orthogonal(matrix.grad.lerp(mean, group["momentum"]).flatten(1))
                matrix.add_(step.view_as(matrix), alpha=-group["lr"] * 0.2 * max(step.shape) ** 0.5)
