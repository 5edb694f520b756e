"""Expected output tokens of requests of one class, from the outputs of earlier ones."""

from __future__ import annotations

from math import frexp
from typing import Final

FIRST_OUTPUT_TOKENS: Final = 200.0
"""Expected output before the first observation: conversations in public traces have a mean of 150 to 250."""

_LIMIT_WEIGHT: Final = 8.0  # observations that weigh as much as the overall mean
_WINDOW: Final = 200.0  # of the running means, in observations
_N_LIMITS: Final = 26  # powers of two of `max_tokens`; 0 = not stated
_LENGTHS: Final = 1 << 12  # more quarter octaves than prompts have


class OutputEstimate:
    """Predicts the output tokens of one class of requests (or of one model) from its past outputs.

    There is one running mean per quarter octave of the prompt's length and power of two of `max_tokens`.
    Where it has no observation, that of the power of two counts, shrunk to the overall mean (cut at the
    maximum) until it has enough. Reasons: clients that request 16 tokens use all of them, those that request
    4,096 mostly do not; and on the Azure conversation trace of 2023 the length of the prompt explains
    two thirds of the variance of the logarithm of the output.
    """

    __slots__ = ("_all", "_of_length", "_of_limit")

    def __init__(self) -> None:
        self._all = [0.0, FIRST_OUTPUT_TOKENS]  # observations in the window, and their mean
        self._of_limit = [[0.0, 0.0] for _ in range(_N_LIMITS)]
        self._of_length: dict[int, list[float]] = {}

    def predict(self, prompt_tokens: float, max_tokens: float = 0.0) -> float:
        """Expected output tokens of one answer. `max_tokens` = 0: the client sets no limit."""
        limit = _limit(max_tokens)
        known = self._of_length.get(limit * _LENGTHS + _length(prompt_tokens))
        mean = self._shrunk(limit, max_tokens) if known is None else known[1]
        return mean if max_tokens <= 0.0 or mean < max_tokens else max_tokens

    def _shrunk(self, limit: int, max_tokens: float) -> float:
        prior = self._all[1]
        if 0.0 < max_tokens < prior:
            prior = max_tokens
        count, mean = self._of_limit[limit]
        return (count * mean + _LIMIT_WEIGHT * prior) / (count + _LIMIT_WEIGHT)

    def observe(self, prompt_tokens: float, max_tokens: float, output_tokens: float) -> None:
        """Observe the output tokens of one answer to such a prompt under this limit."""
        limit = _limit(max_tokens)
        key = limit * _LENGTHS + _length(prompt_tokens)
        known = self._of_length.get(key)
        if known is None:
            known = self._of_length[key] = [0.0, 0.0]
        for mean in (self._all, self._of_limit[limit], known):
            if mean[0] < _WINDOW:
                mean[0] += 1.0
            mean[1] += (output_tokens - mean[1]) / mean[0]


def _limit(max_tokens: float) -> int:
    return 0 if max_tokens < 1.0 else min(int(max_tokens).bit_length(), _N_LIMITS - 1)


def _length(prompt_tokens: float) -> int:
    """Quarter octave of a prompt's length."""
    part, exponent = frexp(prompt_tokens)
    return 4 * exponent + int(8.0 * part)
