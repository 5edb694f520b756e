"""Estimates a request's work from its facts, with all constants of these estimates.

The units are those of recorded traces, where these have units: output tokens + 0.05 × prompt tokens for a
language model, steps × images (of 1024 × 1024) for an image model. `decide.learning` learns the seconds per
unit.
"""

from __future__ import annotations

from typing import Final

from trimtab.gateway.model import Facts, Kind, Usage

BYTES_PER_TOKEN: Final = 4.0
"""UTF-8 bytes of text per token: English prose has 4 to 4.5, code about 3.5, Chinese 3 to 4."""
MESSAGE_TOKENS: Final = 4.0
"""Tokens that a chat template adds to every message."""
IMAGE_TOKENS: Final = 765.0
"""Tokens of an image in a prompt: 1024 × 1024 in OpenAI's tiles; vision models take 250 to 1,500."""
AUDIO_TOKENS_PER_S: Final = 25.0
"""Tokens per second of speech in a prompt: encoders give 12.5 to 50."""
SPEECH_BYTES_PER_S: Final = 15.0
"""Bytes of text per second of speech: about 150 words a minute."""
PROMPT_TOKEN_FRAC: Final = 0.05
"""Work of a prompt token relative to an output token, the default of trace formats too."""
COMPLETION_MAX_TOKENS: Final = 16.0
"""The limit of /v1/completions if the client states none."""
DEFAULT_STEPS: Final = 30
"""Denoising steps if the client states none."""
DEFAULT_MEGAPIXELS: Final = 1024 * 1024 / 1e6
"""Size of an image if the client states none."""
VIDEO_FRAMES_PER_S: Final = 16.0
"""Frames per second of generated video: open models make 16 to 24."""
DEFAULT_VIDEO_S: Final = 4.0
"""Duration of a video if the client states none: the default of OpenAI's video API."""
DEFAULT_OUTPUT_TOKENS: Final = 200.0
"""Predicted output before the first observation: conversations in public traces have a mean of 150 to 250."""
MAX_STATED: Final = 1e7
"""Larger numbers in a request are cut to this, so that a client cannot make a node look busy for a year."""
MIN_UNITS: Final = 1e-3
"""The minimum work of a request: sizes in a trace must be above 0."""

BLOCK_CHARS: Final = 512
"""Characters in a block of the prefix index."""
BLOCK_TOKENS: Final = BLOCK_CHARS / BYTES_PER_TOKEN
"""Approximate tokens in a block of the prefix index."""
HASHED_CHARS: Final = 65_536
"""Characters of a prompt's beginning that the prefix index covers."""

_GENERATING: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.RESPONSE, Kind.MESSAGES))
_BUCKET_WEIGHT: Final = 8.0  # number of observations that weigh as much as the prior
_WINDOW: Final = 200.0  # window of the running means, in observations
_N_BUCKETS: Final = 26  # by the power of two of max_tokens; 0 = not stated


class OutputEstimate:
    """Predicts the output tokens of one class of requests (or of one model) from its past outputs.

    There is one running mean per power of two of `max_tokens`. Each one is shrunk to the overall mean (cut at
    the maximum) until it has enough own observations. Reason: clients that request 16 tokens use all of them,
    those that request 4,096 mostly do not.
    """

    __slots__ = ("_asked_tokens", "_counts", "_means", "_said_tokens", "_seen_bucket", "_seen_tokens")

    def __init__(self, mean_tokens: float = DEFAULT_OUTPUT_TOKENS) -> None:
        self._means = [mean_tokens] + [0.0] * _N_BUCKETS  # the first is the overall mean
        self._counts = [0.0] * (_N_BUCKETS + 1)
        self._asked_tokens = self._said_tokens = -1.0  # the last prediction, valid until the next observation
        self._seen_tokens, self._seen_bucket = 0.0, _bucket(0.0)  # of the last observation

    def predict(self, max_tokens: float) -> float:
        """Expected output tokens of one answer. `max_tokens` = 0: the client sets no limit."""
        if max_tokens == self._asked_tokens:
            return self._said_tokens
        self._asked_tokens, self._said_tokens = max_tokens, self._predicted(max_tokens)
        return self._said_tokens

    def _predicted(self, max_tokens: float) -> float:
        bucket = _bucket(max_tokens)
        prior = self._means[0]
        if 0.0 < max_tokens < prior:
            prior = max_tokens
        count = self._counts[bucket]
        mean = (count * self._means[bucket] + _BUCKET_WEIGHT * prior) / (count + _BUCKET_WEIGHT)
        return mean if max_tokens <= 0.0 or mean < max_tokens else max_tokens

    def observe(self, max_tokens: float, output_tokens: float) -> None:
        """Observe the output tokens of one answer under this limit."""
        self._asked_tokens = -1.0
        if max_tokens != self._seen_tokens:
            self._seen_tokens, self._seen_bucket = max_tokens, _bucket(max_tokens)
        counts, means, bucket = self._counts, self._means, self._seen_bucket
        count, mean = counts[0], means[0]
        if count < _WINDOW:
            count = counts[0] = count + 1.0
        means[0] = mean + (output_tokens - mean) / count
        count, mean = counts[bucket], means[bucket]
        if count < _WINDOW:
            count = counts[bucket] = count + 1.0
        means[bucket] = mean + (output_tokens - mean) / count


def _bucket(max_tokens: float) -> int:
    if max_tokens < 1.0:
        return 1
    bucket = 1 + int(max_tokens).bit_length()
    return bucket if bucket < _N_BUCKETS else _N_BUCKETS


def estimate(facts: Facts, kind: Kind, output: OutputEstimate) -> tuple[float, float]:
    """Predicted work units of a request, and the tokens that it holds on its node (prompt and output)."""
    if kind in _GENERATING:
        out = output.predict(facts.max_tokens) * facts.answers
        return token_units(facts.prompt_tokens, out), facts.prompt_tokens + out
    if kind in MEDIA:
        return _media_units(facts, kind), facts.prompt_tokens
    return token_units(facts.prompt_tokens, 0.0), facts.prompt_tokens


def used(facts: Facts, kind: Kind, usage: Usage) -> float:
    """Work units of a finished request, from the usage that its backend reports."""
    if kind in MEDIA:
        return _media_units(facts, kind)
    output_tokens = usage.completion_tokens if kind in _GENERATING else 0.0
    return token_units(usage.prompt_tokens or facts.prompt_tokens, output_tokens)


def predictable(facts: Facts, kind: Kind, usage: Usage) -> float:
    """Work units of a finished request as `estimate` gives them, had it known the output."""
    return used(facts, kind, Usage(0, usage.completion_tokens))


def token_units(prompt_tokens: float, output_tokens: float) -> float:
    """Work units of a language model's request: output tokens + 0.05 × prompt tokens."""
    units = output_tokens + PROMPT_TOKEN_FRAC * prompt_tokens
    return units if units > MIN_UNITS else MIN_UNITS


MEDIA: Final = frozenset((Kind.IMAGE, Kind.SPEECH, Kind.TRANSCRIPTION, Kind.VIDEO, Kind.REALTIME))
"""Kinds whose work is counted in steps, seconds or frames: backends do not report it in tokens."""


def _media_units(facts: Facts, kind: Kind) -> float:
    if kind is Kind.IMAGE:
        return _steps(facts) * max(facts.images, 1) * _size(facts)
    if kind is Kind.VIDEO:
        frames = (facts.video_s or DEFAULT_VIDEO_S) * VIDEO_FRAMES_PER_S
        return _steps(facts) * frames * _size(facts)
    if kind in (Kind.SPEECH, Kind.TRANSCRIPTION):
        return max(facts.audio_s, MIN_UNITS)
    return 1.0


def _steps(facts: Facts) -> int:
    return facts.steps or DEFAULT_STEPS


def _size(facts: Facts) -> float:
    """Pixels of one image relative to the default size."""
    return (facts.megapixels or DEFAULT_MEGAPIXELS) / DEFAULT_MEGAPIXELS
