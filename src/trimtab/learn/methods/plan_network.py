"""What networks that make plans share: weights by the names of the artifact, and their improvement."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import torch

from trimtab.domain.artifact import Floats
from trimtab.learn.methods.learner import Adam, masked
from trimtab.policies.shared.plan_networks import Shapes

_LARGEST_NORM: Final = 1.0  # of a gradient
_RATE: Final = 0.015  # of Adam at the start


class PlanNetwork(torch.nn.Module):
    """A network whose weights are the arrays of an artifact, in double precision as in hosts."""

    def __init__(self, shapes: Shapes, seed: int) -> None:
        """Normal matrices with the variance of their inputs' number, ones for gains, zeros for the rest."""
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.of = torch.nn.ParameterDict(
                {name: _first(name, shape) for name, shape in sorted(shapes.items())}
            )
        self._adam = Adam(self, largest_norm=_LARGEST_NORM)

    def arrays(self) -> dict[str, Floats]:
        """The arrays of the artifact."""
        return {name: weight.detach().numpy().copy() for name, weight in self.of.items()}

    def descend(self, loss: Any, left: float) -> None:
        """One step against the gradient of a loss; `left`: share of the training still to come."""
        self._adam.descend(loss, _RATE * left)

    def checkpoint(self) -> dict[str, Any]:
        """Weights and moments, to go on from."""
        return self._adam.arrays("adam")

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Go on from what `checkpoint` gave."""
        self._adam.take(arrays, "adam")


class SequenceNetwork(PlanNetwork):
    """A network that points to one pair of request and slot after another."""

    @abstractmethod
    def _terms(self, x: Any) -> tuple[Any, Any, Any]:
        """What the pointer reads of requests (n, requests, width) and slots (n, slots, width); a memory."""

    @abstractmethod
    def _steps(self, x: Any, requests: Any, slots: Any, memory: Any) -> Any:
        """States before each choice (n, steps, width); `requests` and `slots` (n, steps) were chosen."""

    def forward(self, x: Any, requests: Any, slots: Any) -> Any:
        """Scores of pairs before each choice of given sequences, (n, steps, requests, slots).

        x (n, steps, requests, slots, features) are the features at each step.
        """
        of_requests, of_slots, memory = self._terms(x[:, 0])
        pairs = x @ self.of["pair"] + of_requests[:, None, :, None] + of_slots[:, None, None]
        steps = self._steps(x, requests, slots, memory) @ self.of["step"]
        return torch.nn.functional.softsign(pairs + steps[:, :, None, None]) @ self.of["score"]

    def loss(self, x: Any, requests: Any, slots: Any, can: Any) -> Any:
        """Mean negative log likelihood of a choice of the given sequences, each after the ones before it.

        `can` (n, requests, slots): which pairs can be served at all.
        """
        n, steps = requests.shape
        scores, chosen = self(x, requests, slots), torch.nn.functional.one_hot(requests, x.shape[2])
        is_open = chosen.cumsum(dim=1) - chosen == 0  # (n, steps, requests)
        scores = masked(scores, is_open[..., None] & can[:, None])
        picked = requests * x.shape[3] + slots
        return torch.nn.functional.cross_entropy(scores.view(n * steps, -1), picked.view(-1))


def chosen_features(x: Any, requests: Any, slots: Any) -> Any:
    """Features of the chosen pairs, (n, steps, features)."""
    n, steps = requests.shape
    return x[torch.arange(n)[:, None], torch.arange(steps), requests, slots]


def _first(name: str, shape: tuple[int, ...]) -> Any:
    if name == "gain":
        return torch.ones(shape, dtype=torch.float64)
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.float64)
    inputs = shape[-2] if len(shape) > 1 else shape[0]
    return torch.randn(shape, dtype=torch.float64) / math.sqrt(inputs)
