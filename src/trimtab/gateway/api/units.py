"""How much work a request is, estimated from what it says of itself; every constant of these estimates.

Units are those of recorded traces where these have them: output tokens + 0.05 × prompt tokens of a language
model, steps × images (of 1024 × 1024) of an image model. How long a unit takes is learned elsewhere.
"""

from __future__ import annotations

from typing import Final

from trimtab.gateway.model import Facts, Kind, Usage

BYTES_PER_TOKEN: Final = 4.0
"""UTF-8 bytes of text per token: English prose has 4 to 4.5, code about 3.5, Chinese 3 to 4."""
MESSAGE_TOKENS: Final = 4.0
"""What a chat template adds to every message."""
IMAGE_TOKENS: Final = 765.0
"""An image in a prompt: one of 1024 × 1024 in OpenAI's tiles; vision models take 250 to 1,500."""
AUDIO_TOKENS_PER_S: Final = 25.0
"""Speech in a prompt: encoders give 12.5 to 50 tokens a second."""
SPEECH_BYTES_PER_S: Final = 15.0
"""Text read aloud: about 150 words a minute."""
PROMPT_TOKEN_FRAC: Final = 0.05
"""Work of a prompt token relative to an output token, the default of trace formats too."""
COMPLETION_MAX_TOKENS: Final = 16.0
"""What /v1/completions generates at most where the client says nothing."""
DEFAULT_STEPS: Final = 30
"""Denoising steps where the client says nothing."""
DEFAULT_MEGAPIXELS: Final = 1024 * 1024 / 1e6
"""One image where the client says nothing."""
VIDEO_FRAMES_PER_S: Final = 16.0
"""Frames per second of generated video: open models make 16 to 24."""
DEFAULT_VIDEO_S: Final = 4.0
"""Length of a video where the client says nothing: the default of OpenAI's video API."""
DEFAULT_OUTPUT_TOKENS: Final = 200.0
"""Predicted output before anything was seen: conversations in public traces have a mean of 150 to 250."""
MAX_STATED: Final = 1e7
"""Larger numbers in a request are taken as this: nobody makes a node look busy for a year."""
MIN_UNITS: Final = 1e-3
"""The least work of a request; a trace's sizes are above 0."""

BLOCK_CHARS: Final = 512
"""Characters in a block of the prefix index."""
BLOCK_TOKENS: Final = BLOCK_CHARS / BYTES_PER_TOKEN
"""Tokens in a block of the prefix index, about."""
HASHED_CHARS: Final = 65_536
"""How much of a prompt's beginning the prefix index looks at."""

_GENERATING: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.RESPONSE, Kind.MESSAGES))
_BUCKET_WEIGHT: Final = 8.0  # so many observations weigh as much as the prior
_WINDOW: Final = 200.0  # observations that the running means remember
_N_BUCKETS: Final = 26  # by the power of two of max_tokens; 0 = not said


class OutputEstimate:
    """Predicts the output tokens of one class of requests (or of one model), learned from what it produced.

    One running mean per power of two of `max_tokens`, drawn to the overall mean (cut at the maximum) until it
    has enough observations of its own: clients that ask for 16 tokens use them all, those that ask for 4,096
    mostly don't.
    """

    __slots__ = ("_asked_tokens", "_counts", "_means", "_said_tokens", "_seen_bucket", "_seen_tokens")

    def __init__(self, mean_tokens: float = DEFAULT_OUTPUT_TOKENS) -> None:
        self._means = [mean_tokens] + [0.0] * _N_BUCKETS  # the first is the overall one
        self._counts = [0.0] * (_N_BUCKETS + 1)
        self._asked_tokens = self._said_tokens = -1.0  # the last prediction: good until the next lesson
        self._seen_tokens, self._seen_bucket = 0.0, _bucket(0.0)  # of the last lesson

    def predict(self, max_tokens: float) -> float:
        """Expected output tokens of one answer; `max_tokens` 0 = the client sets no limit."""
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
        """One answer under this limit had so many tokens."""
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
    """Predicted work units of a request, and the tokens it will hold on its node (prompt and output)."""
    if kind in _GENERATING:
        out = output.predict(facts.max_tokens) * facts.answers
        return token_units(facts.prompt_tokens, out), facts.prompt_tokens + out
    if kind in MEDIA:
        return _media_units(facts, kind), facts.prompt_tokens
    return token_units(facts.prompt_tokens, 0.0), facts.prompt_tokens


def used(facts: Facts, kind: Kind, usage: Usage) -> float:
    """Work units of a finished request, with what its backend says it used."""
    if kind in MEDIA:
        return _media_units(facts, kind)
    output_tokens = usage.completion_tokens if kind in _GENERATING else 0.0
    return token_units(usage.prompt_tokens or facts.prompt_tokens, output_tokens)


def token_units(prompt_tokens: float, output_tokens: float) -> float:
    """Work units of a language model's request: output tokens + 0.05 × prompt tokens."""
    units = output_tokens + PROMPT_TOKEN_FRAC * prompt_tokens
    return units if units > MIN_UNITS else MIN_UNITS


MEDIA: Final = frozenset((Kind.IMAGE, Kind.SPEECH, Kind.TRANSCRIPTION, Kind.VIDEO, Kind.REALTIME))
"""Kinds whose work is steps, seconds or frames: no backend tells it in tokens."""


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
    """Pixels of one image relative to the usual one."""
    return (facts.megapixels or DEFAULT_MEGAPIXELS) / DEFAULT_MEGAPIXELS
