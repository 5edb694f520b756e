"""Expected output tokens of requests of one class, from the outputs of earlier ones."""

from __future__ import annotations

from math import frexp
from typing import Final

from trimtab.domain.learned_estimates import LengthCurve

FIRST_OUTPUT_TOKENS: Final = 200.0
"""Expected output before the first observation: conversations in public traces have a mean of 150 to 250."""

LEARNED_WEIGHT: Final = 2.0
"""Observations of a length that weigh as much as what others learned of it: answers to like prompts scatter
by about 0.7 of their mean on public traces, and others' curves are off by about half of it; the ratio,
squared."""

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

    With `learned`, a curve that others learned, the overall mean is instead the curve at the prompt's length
    times the ratio of all outputs to what it expects of their prompts; and a length counts for itself only
    as far as it was observed: the shape is that of others, the level one's own.
    """

    __slots__ = ("_all", "_level", "_of_length", "_of_limit", "learned")

    def __init__(self, learned: LengthCurve | None = None) -> None:
        self.learned = learned
        # Observations in the window, the mean of their outputs, and of what the curve expects of them.
        self._level = [_LIMIT_WEIGHT, FIRST_OUTPUT_TOKENS, FIRST_OUTPUT_TOKENS]
        self._all = [0.0, FIRST_OUTPUT_TOKENS]  # observations in the window, and their mean
        self._of_limit = [[0.0, 0.0] for _ in range(_N_LIMITS)]
        self._of_length: dict[int, list[float]] = {}

    def predict(self, prompt_tokens: float, max_tokens: float = 0.0) -> float:
        """Expected output tokens of one answer. `max_tokens` = 0: the client sets no limit."""
        limit = _limit(max_tokens)
        known = self._of_length.get(limit * _LENGTHS + _length(prompt_tokens))
        if self.learned is not None:
            mean = self._level[1] / self._level[2] * self.learned.at(prompt_tokens)
            if known is not None:
                mean = (known[0] * known[1] + LEARNED_WEIGHT * mean) / (known[0] + LEARNED_WEIGHT)
        else:
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
        if self.learned is not None:
            self._observe_level(prompt_tokens, max_tokens, output_tokens)
        known = self._of_length.get(key)
        if known is None:
            known = self._of_length[key] = [0.0, 0.0]
        for mean in (self._all, self._of_limit[limit], known):
            if mean[0] < _WINDOW:
                mean[0] += 1.0
            mean[1] += (output_tokens - mean[1]) / mean[0]

    def _observe_level(self, prompt_tokens: float, max_tokens: float, output_tokens: float) -> None:
        assert self.learned is not None
        expected, level = self.learned.at(prompt_tokens), self._level
        if 0.0 < max_tokens < expected:
            return  # the limit says more about the output than the prompt does
        if level[0] < _WINDOW:
            level[0] += 1.0
        level[1] += (output_tokens - level[1]) / level[0]
        level[2] += (expected - level[2]) / level[0]


def _limit(max_tokens: float) -> int:
    return 0 if max_tokens < 1.0 else min(int(max_tokens).bit_length(), _N_LIMITS - 1)


def _length(prompt_tokens: float) -> int:
    """Quarter octave of a prompt's length."""
    part, exponent = frexp(prompt_tokens)
    return 4 * exponent + int(8.0 * part)
