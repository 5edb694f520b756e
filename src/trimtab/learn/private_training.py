"""Linear estimates by differentially private stochastic gradient descent (extra `private`).

Source: M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1, by Opacus: each
row enters a batch by itself (Poisson sampling), gradients of rows are cut to a length, noise is added to
their sum. Costs are added up by Rényi accounting with subsampling (I. Mironov, K. Talwar and L. Zhang, "Rényi
Differential Privacy of the Sampled Gaussian Mechanism", 2019), as Opacus has it.

What is private is a row: results with it and without it differ by (ε, δ) at most. Deviation: noise and draws
come from torch's generator, a Mersenne Twister seeded by the operating system, and noise is in floating
point. Opacus' secure mode needs torchcsprng, which is no longer published. `privacy.mechanisms` has neither
weakness.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError
from trimtab.privacy.library import loaded

Floats = NDArray[np.float64]
LEAST_EPSILON: Final = 0.05  # below it, accounting takes minutes


@dataclass(frozen=True)
class Descent:
    """How weights descend.

    Attributes:
        steps: batches.
        share_frac: of the rows, expected in a batch.
        rate: of descent, in ½ squared error.
        clip: greatest length of a row's gradient.
    """

    steps: int = 200
    share_frac: float = 0.1
    rate: float = 2.0
    clip: float = 1.0


class PrivateFit(NamedTuple):
    """Weights, [numbers], and what they cost."""

    weights: Floats
    epsilon: float  # of a row, at the δ that was asked for
    noise_multiplier: float  # standard deviation of the noise on a sum of gradients, in lengths of `clip`


def private_fit(
    features: Floats,
    targets: Floats,
    begin: Floats,
    *,
    epsilon: float,
    delta: float,
    rows: float,
    descent: Descent = Descent(),
    seed: int | None = None,
) -> PrivateFit:
    """Weights w that bring features · w near to targets, (ε, δ)-differentially private by row.

    Args:
        features: [rows, numbers].
        targets: [rows].
        begin: weights to begin with, [numbers]; they are public.
        epsilon: of all steps together; inf = gradients are cut, without noise.
        delta: below one by the number of rows.
        rows: how many there are, as may be told: the rate of descent shows it.
        descent: steps, shares, lengths.
        seed: None = the operating system's; who knows it takes the noise away.

    Raises:
        UsageError: ε or δ that promise nothing or cannot be kept. MissingExtra.
    """
    check_promise(epsilon, delta, len(targets))
    torch, opacus = _libraries()
    spent, noise = 0.0, 0.0
    if np.isfinite(epsilon):
        noise = opacus.noise_multiplier(epsilon, delta, descent)
        spent = opacus.epsilon(noise, delta, descent)
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    inputs, wanted = (torch.as_tensor(array, dtype=torch.float64) for array in (features, targets))
    layer = torch.nn.Linear(len(begin), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(begin)[None])
    model = opacus.with_sample_gradients(layer)
    plain = torch.optim.SGD(model.parameters(), lr=descent.rate / (descent.share_frac * rows))
    optimiser = opacus.private(plain, noise, descent.clip, generator)
    for _ in range(descent.steps):
        batch = torch.rand(len(targets), generator=generator, dtype=torch.float64) < descent.share_frac
        optimiser.zero_grad()
        rows_in = inputs[batch].requires_grad_()  # Opacus hooks on to it
        (0.5 * (model(rows_in)[:, 0] - wanted[batch]) ** 2).sum().backward()
        optimiser.step()
    weights = layer.weight.detach().numpy()[0].astype(np.float64)
    return PrivateFit(weights, spent if np.isfinite(epsilon) else np.inf, noise)


def check_promise(epsilon: float, delta: float, n_rows: int) -> None:
    """Raises UsageError for ε and δ that promise nothing, or that no noise keeps."""
    if not epsilon >= LEAST_EPSILON:
        raise UsageError("can't be kept", field="epsilon", value=epsilon, expected=f"{LEAST_EPSILON} or more")
    if not 0.0 < delta * max(1, n_rows) < 1.0:
        expected = f"above 0 and below 1/{n_rows}, one by the rows"
        raise UsageError("promises nothing", field="delta", value=delta, expected=expected)


class _Opacus:
    """The parts of Opacus that are used, without what it warns of: the module's docstring says it."""

    def __init__(self) -> None:
        from opacus.accountants import RDPAccountant
        from opacus.accountants.utils import get_noise_multiplier
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self._accountant, self._noise = RDPAccountant, get_noise_multiplier
        self._samples, self._optimiser = GradSampleModule, DPOptimizer

    @lru_cache(maxsize=64)  # noqa: B019 - there is one of these
    def noise_multiplier(self, epsilon: float, delta: float, descent: Descent) -> float:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimal order is the")
            found = self._noise(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=descent.share_frac,
                steps=descent.steps,
                epsilon_tolerance=0.001 * epsilon,
            )
        return float(found)

    def epsilon(self, noise: float, delta: float, descent: Descent) -> float:
        accountant = self._accountant()
        accountant.history = [(noise, descent.share_frac, descent.steps)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimal order is the")
            return float(accountant.get_epsilon(delta))

    def with_sample_gradients(self, model: Any) -> Any:
        return self._samples(model, loss_reduction="sum")

    def private(self, optimiser: Any, noise: float, clip: float, generator: Any) -> Any:
        return self._optimiser(
            optimiser,
            noise_multiplier=noise,
            max_grad_norm=clip,
            expected_batch_size=None,
            loss_reduction="sum",
            generator=generator,
        )


@cache
def _libraries() -> tuple[Any, _Opacus]:
    needed = "private training needs Opacus"
    torch, _ = loaded("torch", needed), loaded("opacus", needed)
    return torch, _Opacus()
