"""Tables to share, seeded noise, and what an attacker learns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from scipy.stats import beta

from trimtab.privacy.mechanisms import Counts, Noise
from trimtab.traces import Trace

TOKENS_RULE = "output tokens + 0.05 × prompt tokens"


def requests(rows: int, seed: int = 0, *, tenants: int = 40) -> pl.DataFrame:
    """Requests of an hour: two classes, long prompts with long answers, skewed tenants."""
    rng = np.random.default_rng(seed)
    is_chat = rng.random(rows) < 0.7
    prompt = (
        np.where(is_chat, rng.lognormal(5.0, 1.0, rows), rng.lognormal(7.0, 0.6, rows)).astype(np.int64) + 1
    )
    output = (rng.lognormal(4.0, 0.5, rows) * (prompt / 150.0) ** 0.4).astype(np.int64) + 1
    likely = 1.0 / np.arange(1, tenants + 1)
    return pl.DataFrame(
        {
            "arrival_s": np.sort(rng.random(rows) * 3600.0),
            "size": output + 0.05 * prompt,
            "class": np.where(is_chat, "chat", "batch"),
            "tenant": [f"t{k}" for k in rng.choice(tenants, rows, p=likely / likely.sum())],
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
    )


def trace_of(table: pl.DataFrame) -> Trace:
    """The table as a trace that was read."""
    return Trace(table, "trimtab", "log.csv", table.height, {}, size_rule=TOKENS_RULE)


def seeded_noise(seed: int) -> Noise:
    """Rounded Gaussian noise of a seed."""
    rng = np.random.default_rng(seed)
    return lambda counts, sigma: counts + np.rint(rng.normal(0.0, sigma, counts.shape)).astype(np.int64)


def no_noise(counts: Counts, sigma: float) -> Counts:
    """The counts as they are: what nobody should share."""
    return counts


class Transcript:
    """Noise that records what it is given, and answers as another transcript did, or with the counts."""

    def __init__(self, answers: list[Counts] | None = None) -> None:
        self.asked: list[Counts] = []
        self._answers = answers

    def __call__(self, counts: Counts, sigma: float) -> Counts:
        self.asked.append(counts.copy())
        return counts if self._answers is None else self._answers[len(self.asked) - 1]


def advantage(scores: Callable[[bool, int], float], cut: float, trials: int) -> tuple[float, float]:
    """95 % interval of an attacker's advantage: right alarms minus false ones, at scores above a cut.

    `scores(is_in, seed)`: what the attacker computes from one release. The cut is fixed beforehand. The
    interval is that of Clopper and Pearson for both rates at once.
    """
    hits, alarms = (sum(scores(is_in, 2 * k + is_in) > cut for k in range(trials)) for is_in in (True, False))
    tail = 0.05 / 4.0

    def ends(k: int) -> tuple[float, float]:
        low = float(beta.ppf(tail, k, trials - k + 1)) if k else 0.0
        high = float(beta.ppf(1.0 - tail, k + 1, trials - k)) if k < trials else 1.0
        return low, high

    return ends(hits)[0] - ends(alarms)[1], ends(hits)[1] - ends(alarms)[0]


def most_advantage(epsilon: float, delta: float) -> float:
    """Most that (ε, δ) allows: Humphries et al., "Investigating membership inference attacks under data
    dependencies", CSF 2023, Theorem 3.1, for δ = 0; with δ of Kairouz, Oh and Viswanath, ICML 2015."""
    e = float(np.exp(epsilon))
    return (e - 1.0 + 2.0 * delta) / (e + 1.0)
