"""Estimates a request's work from its facts, with all constants of these estimates.

The units are those of recorded traces, where these have units: output tokens + 0.05 × prompt tokens for a
language model, steps × images (of 1024 × 1024) for an image model. `decide.learning` learns the seconds per
unit.
"""

from __future__ import annotations

from typing import Final

from trimtab.domain.output_estimate import OutputEstimate
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


def estimate(facts: Facts, kind: Kind, output: OutputEstimate) -> tuple[float, float]:
    """Predicted work units of a request, and the tokens that it holds on its node (prompt and output)."""
    if kind in _GENERATING:
        out = output.predict(facts.prompt_tokens, facts.max_tokens) * facts.answers
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
