"""Work units by hand, and predicted output that learns."""

import random

import pytest

from trimtab.gateway.api.units import (
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_STEPS,
    MIN_UNITS,
    OutputEstimate,
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
    assert estimate(unlimited, Kind.MESSAGES, output)[0] == DEFAULT_OUTPUT_TOKENS
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


def test_outputs_are_learned_by_their_limit() -> None:
    draw = random.Random(1)
    output = OutputEstimate()
    for _ in range(2_000):
        output.observe(16, 16)
        output.observe(4_096, draw.uniform(400, 600))
    assert output.predict(16) == pytest.approx(16, abs=0.5)
    assert output.predict(4_096) == pytest.approx(500, rel=0.1)
    assert output.predict(3) == 3  # never seen: its limit
    assert output.predict(20) <= 20


def test_a_changed_model_is_followed() -> None:
    output = OutputEstimate()
    for tokens in (100, 900):
        for _ in range(1_500):
            output.observe(0, tokens)
    assert output.predict(0) == pytest.approx(900, rel=0.02)


def test_odd_limits_do_no_harm() -> None:
    output = OutputEstimate()
    for limit in (0, 0.3, 1, 1e7):
        output.observe(limit, 5)
        assert output.predict(limit) >= 0
