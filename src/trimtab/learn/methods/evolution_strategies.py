"""Evolution strategies for weights: antithetic pairs, centred ranks, Adam.

Source: Tim Salimans, Jonathan Ho, Xi Chen, Szymon Sidor, Ilya Sutskever, "Evolution strategies as a scalable
alternative to reinforcement learning", arXiv:1703.03864, 2017, algorithm 1 with mirrored sampling and rank
shaping; Adam: Kingma and Ba, ICLR 2015, algorithm 1.

Deviations from the source: ranks are taken within each task and then averaged, so that no task counts for
more because its losses are larger; the result is a running mean of the centres, not the last one; no decay of
weights. Random numbers come from the seed and the number of the generation, so that a run that goes on from a
checkpoint gives the same weights, bit for bit, as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError

Floats = NDArray[np.float64]
_DECAY_MEAN: Final = 0.9
_DECAY_SQUARE: Final = 0.98
_FOLLOWS: Final = 0.1  # share by which the result moves towards the centre in a generation
_LEAST: Final = 1e-8


class EvolutionStrategies:
    """Asks for weights to try, and moves its centre by what it is told of them."""

    def __init__(
        self, start: Floats, *, pairs: int = 12, sigma: float = 0.06, rate: float = 0.03, seed: int = 0
    ) -> None:
        """A search.

        Args:
            start: the first centre, [weights].
            pairs: mirrored pairs of candidates in a generation.
            sigma: standard deviation of a candidate's weights around the centre.
            rate: about how far each weight of the centre moves in a generation.
            seed: of all candidates.
        """
        for name, value, least in (("pairs", pairs, 1), ("sigma", sigma, 1e-12), ("rate", rate, 0.0)):
            if not least <= value < math.inf:
                raise UsageError("out of range", field=name, value=value, expected=f"at least {least:g}")
        self.pairs, self.sigma, self.rate, self.seed = pairs, sigma, rate, seed
        self.generation = 0
        self._free: NDArray[Any] = np.ones(len(start))
        self._arrays: dict[str, Floats] = {
            "centre": np.array(start, np.float64),
            "result": np.array(start, np.float64),
            "mean": np.zeros(len(start)),
            "square": np.zeros(len(start)),
        }

    def hold(self, fixed: NDArray[np.bool_]) -> None:
        """Leave these weights [weights] as they are."""
        self._free = 1.0 - fixed

    @property
    def result(self) -> Floats:
        """The running mean of the centres, [weights]."""
        return self._arrays["result"].copy()

    def candidates(self) -> Floats:
        """The weights to try in this generation, [2 × pairs, weights]."""
        step = self.sigma * self._directions()
        return np.concatenate([self._arrays["centre"] + step, self._arrays["centre"] - step])

    def tell(self, losses: Floats) -> None:
        """End a generation with the losses of its candidates, [2 × pairs, tasks]; less is better.

        Raises UsageError for a loss that is not a number.
        """
        if np.isnan(losses).any():
            raise UsageError("is not a number", field="loss", value=f"generation {self.generation}")
        directions, ranks = self._directions(), centred_ranks(losses).mean(axis=1)
        apart = ranks[: self.pairs] - ranks[self.pairs :]
        gradient = (apart[:, None] * directions).sum(axis=0) / (self.pairs * self.sigma)
        self.generation += 1
        a, g = self._arrays, self.generation
        a["mean"] += (1.0 - _DECAY_MEAN) * (gradient - a["mean"])
        a["square"] += (1.0 - _DECAY_SQUARE) * (gradient * gradient - a["square"])
        root = np.sqrt(a["square"] / (1.0 - _DECAY_SQUARE**g)) + _LEAST
        a["centre"] -= self.rate * a["mean"] / (1.0 - _DECAY_MEAN**g) / root
        a["result"] += (1.0 if g == 1 else _FOLLOWS) * (a["centre"] - a["result"])

    def checkpoint(self) -> dict[str, Any]:
        """All that a run needs to go on: `arrays` by name, and `state`, plain numbers."""
        arrays = {name: array.copy() for name, array in self._arrays.items()}
        return {"arrays": arrays, "state": {"generation": self.generation}}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of a search of as many weights. Raises UsageError."""
        arrays = {name: np.array(checkpoint["arrays"][name]) for name in self._arrays}
        for name, array in arrays.items():
            if array.shape != self._arrays[name].shape:
                expected = f"{list(self._arrays[name].shape)}"
                raise UsageError("is of other settings", field=name, value=array.shape, expected=expected)
        self._arrays, self.generation = arrays, int(checkpoint["state"]["generation"])

    def _directions(self) -> Floats:
        draw = np.random.default_rng((self.seed, self.generation))
        return self._free * draw.standard_normal((self.pairs, len(self._free)))


def centred_ranks(losses: Floats) -> Floats:
    """Ranks within each column from -1/2, the least, to 1/2; equal losses share the mean of their ranks."""
    less = (losses[:, None, :] > losses[None, :, :]).sum(axis=1)
    equal = (losses[:, None, :] == losses[None, :, :]).sum(axis=1) - 1
    ranks: Floats = (less + 0.5 * equal) / max(1, len(losses) - 1) - 0.5
    return ranks
