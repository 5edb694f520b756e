"""Work units by hand, and predicted output that learns."""

import pytest

from trimtab.domain.output_estimate import FIRST_OUTPUT_TOKENS, OutputEstimate
from trimtab.gateway.api.units import (
    DEFAULT_STEPS,
    MIN_UNITS,
    estimate,
    used,
)
from trimtab.gateway.model import Facts, Kind, Usage


def test_language_models() -> None:
    output = OutputEstimate()
    facts = Facts("m", prompt_tokens=1_000.0, max_tokens=50.0, answers=2)
    assert estimate(facts, Kind.CHAT, output) == (100 + 50, 1_100)
    assert used(facts, Kind.CHAT, Usage(900, 30, 0)) == 30 + 45
    unlimited = Facts("m", prompt_tokens=0.0)
    assert estimate(unlimited, Kind.MESSAGES, output)[0] == FIRST_OUTPUT_TOKENS
    assert estimate(facts, Kind.EMBEDDING, output) == (50, 1_000)
    assert used(facts, Kind.RERANK, Usage(400)) == 20


def test_media() -> None:
    output = OutputEstimate()
    image = Facts("m", images=2, steps=8, megapixels=2 * 1024 * 1024 / 1e6)
    assert estimate(image, Kind.IMAGE, output)[0] == pytest.approx(32)
    assert estimate(Facts("m", images=1), Kind.IMAGE, output)[0] == DEFAULT_STEPS
    assert estimate(Facts("m", audio_s=7.5), Kind.TRANSCRIPTION, output)[0] == 7.5
    assert estimate(Facts("m", video_s=2.0, steps=10), Kind.VIDEO, output)[0] == pytest.approx(320)
    assert used(image, Kind.IMAGE, Usage()) == pytest.approx(32)


@pytest.mark.parametrize("kind", Kind)
def test_work_is_never_nothing(kind: Kind) -> None:
    assert estimate(Facts("m"), kind, OutputEstimate())[0] >= MIN_UNITS
    assert used(Facts("m"), kind, Usage()) >= MIN_UNITS
