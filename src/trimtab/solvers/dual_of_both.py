"""Prices on both constraints, smoothed: the textbook's own dual, which splits by node.

Idea: price capacity at λ[i, r] ≥ 0 and the assignment of task j at u[j], free in sign. With the reduced cost
v[j, i] = c[j, i] + Σ_r λ[i, r] d[j, i, r] − u[j], every node decides by itself, and even every pair:
    L(λ, u) = Σ_j u_j − Σ_i,r λ[i, r] b[i, r] + Σ_i Σ_j min over 0 ≤ x ≤ 1 of v[j, i] x.
The term μ x² / 2 smooths the minimum; its minimiser is then x = min(max(−v / μ, 0), 1), and the gradient is
what the constraints lack: 1 − Σ_i x[j, i] for u, Σ_j d x − b for λ.
Source: Nesterov, "Smooth minimization of non-smooth functions", Mathematical Programming 103 (2005), §2 (the
smoothing, whose gradient has the Lipschitz constant |A|² / μ for constraints A) and §3 (accelerated steps).
Deviations: costs and demands are scaled first, so that one step length suits both kinds of prices; μ shrinks
in stages. The bound is that of L itself, without smoothing.
Cost: O(iterations · pairs). The optimum of this dual is that of the linear programme, as for `dual`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints
from trimtab.solvers.dual import Dual, mean_demand, spread_of
from trimtab.solvers.problem import BoolArray

STAGES_FRAC = (0.3, 0.1, 0.03, 0.01)  # μ as a share of the spread of costs
ITERATIONS = 400  # of a stage
POWER_STEPS = 20  # of the estimate of |A|²
MARGIN = 1.1  # on that estimate, which comes from below
LOOK_EVERY = 10  # iterations between two exact values


@dataclass(frozen=True, slots=True)
class _Scaled:
    """The pairs, with costs in spreads and demands in mean demands."""

    node: Ints  # [tasks, width]
    cost: Floats  # [tasks, width]; inf = no pair
    demand: Floats  # [tasks, width, resources]
    capacity: Floats  # [nodes + 1, resources]

    def reduced(self, u: Floats, prices: Floats) -> Floats:
        """Reduced costs [tasks, width] under prices of tasks and of capacity."""
        return np.asarray(self.cost + (prices[self.node] * self.demand).sum(axis=2) - u[:, None])

    def taken(self, x: Floats) -> tuple[Floats, Floats]:
        """How often each task is assigned [tasks], and the loads [nodes + 1, resources]."""
        load = np.zeros_like(self.capacity)
        np.add.at(load, self.node, x[..., None] * self.demand)
        return x.sum(axis=1), load

    def value(self, u: Floats, prices: Floats) -> float:
        """L(λ, u)."""
        gain = np.minimum(self.reduced(u, prices), 0.0).sum()
        return float(u.sum() - (prices * self.capacity).sum() + gain)

    def squared_norm(self) -> float:
        """An estimate of |A|² by power iteration, x → A x → Aᵀ A x."""
        is_pair: BoolArray = np.isfinite(self.cost)
        x, length = is_pair.astype(np.float64), 1.0
        for _ in range(POWER_STEPS):
            x /= math.sqrt(float((x**2).sum()))
            assigned, load = self.taken(x)
            back = assigned[:, None] + (load[self.node] * self.demand).sum(axis=2)
            x = np.where(is_pair, back, 0.0)
            length = math.sqrt(float((x**2).sum()))
        return MARGIN * length


def dual_of_both(candidates: CandidatePairs, until_s: float = math.inf) -> Dual:
    """Prices of capacity [nodes + 1, resources], and the bound that they and the tasks' prices prove.

    Args:
        candidates: every pair of the problem.
        until_s: when to end (perf_counter).
    """
    spread, unit = spread_of(candidates), mean_demand(candidates)
    scaled = _Scaled(
        np.maximum(candidates.node, 0),
        candidates.cost / spread,
        candidates.demand / unit,
        candidates.capacity / unit,
    )
    norm, prices = scaled.squared_norm(), np.zeros_like(candidates.capacity)
    u = scaled.cost.min(axis=1)
    best = u, prices, scaled.value(u, prices)
    for softness in STAGES_FRAC:
        best = _stage(scaled, best, softness, norm, until_s)
    return Dual(best[1] * spread / unit, best[2] * spread, STAGES_FRAC[-1] * spread)


def _stage(
    scaled: _Scaled, best: tuple[Floats, Floats, float], softness: float, norm: float, until_s: float
) -> tuple[Floats, Floats, float]:
    """Accelerated ascent at one μ from the best prices (u, λ, L); returns the best met."""
    step = softness / norm
    u, prices, _ = best
    ahead_u, ahead, momentum = u, prices, 1.0
    for k in range(1, ITERATIONS + 1):
        x = np.clip(-scaled.reduced(ahead_u, ahead) / softness, 0.0, 1.0)
        assigned, load = scaled.taken(x)
        last_u, last = u, prices
        u = ahead_u + step * (1.0 - assigned)
        prices = np.maximum(ahead + step * (load - scaled.capacity), 0.0)
        grown = (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        inertia, momentum = (momentum - 1.0) / grown, grown
        ahead_u, ahead = u + inertia * (u - last_u), np.maximum(prices + inertia * (prices - last), 0.0)
        if k % LOOK_EVERY == 0:
            value = scaled.value(u, prices)
            best = (u, prices, value) if value > best[2] else best
            if time.perf_counter() > until_s:
                break
    return best
