"""Speech and film: what the files hold, found by decoding them."""

from __future__ import annotations

import io
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from trimtab_film.film_stages import SPEECH_HZ, samples_of, wav_of

from trimtab.errors import ChainError

SENTENCES = (
    "A brave fox slept by the lake.",
    "Then the moon came out, and everyone danced until the morning!",
)


def test_speech_files_keep_their_samples() -> None:
    samples = np.random.default_rng(4).uniform(-1, 1, 5000).astype(np.float32)
    assert np.abs(samples_of(wav_of(samples)) - samples).max() <= 1 / 32767


def test_speech_of_another_kind_is_refused() -> None:
    import wave

    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(b"\0" * 64)
    with pytest.raises(ChainError, match="24000 Hz, mono"):
        samples_of(file.getvalue())


def _tone(seconds: float) -> bytes:
    return wav_of(0.3 * np.sin(np.arange(round(seconds * SPEECH_HZ)) / 20).astype(np.float32))


def _drawing(seed: int) -> bytes:
    from trimtab_film.drawing.draw import draw_scene
    from trimtab_film.scenes import random_scene

    rng, file = random.Random(seed), io.BytesIO()
    draw_scene(random_scene(rng), rng, 320).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def parts() -> tuple[list[dict[str, str]], list[bytes], list[bytes]]:
    pytest.importorskip("PIL", reason="needs the extra models")
    panels = [{"sentence": sentence, "caption": ""} for sentence in SENTENCES]
    return panels, [_drawing(1), _drawing(2)], [_tone(1.3), _tone(2.2)]


@pytest.fixture(scope="module")
def film(parts: Any) -> bytes:
    pytest.importorskip("av", reason="needs the extra models")
    from trimtab_film.film import Film

    return Film()(*parts)


def frames_of(film: bytes) -> list[np.ndarray]:
    import av

    with av.open(io.BytesIO(film)) as file:
        return [frame.to_ndarray(format="rgb24").astype(np.float64) for frame in file.decode(video=0)]


def test_the_film_is_h264_and_aac_and_as_long_as_its_speech(film: bytes) -> None:
    from trimtab_film.film import AFTER_S, BEFORE_S, FRAMES_PER_S, probe

    found = probe(film)
    spoken_s = 1.3 + 2.2 + 2 * (BEFORE_S + AFTER_S)
    assert (found.video_codec, found.audio_codec) == ("h264", "aac")
    assert (found.width_px, found.height_px) == (512, 512)
    assert abs(found.video_s - spoken_s) <= 1 / FRAMES_PER_S
    assert abs(found.audio_s - spoken_s) <= 2 * 1024 / SPEECH_HZ  # whole AAC frames


def test_no_frame_is_blank_and_the_picture_moves(film: bytes) -> None:
    frames = frames_of(film)
    assert min(frame.std() for frame in frames) > 15
    steps = [np.abs(b - a).mean() for a, b in pairwise(frames[4:29])]
    assert sum(steps) > 0
    assert np.abs(frames[28] - frames[4]).mean() > 1
    assert max(steps) < 8  # it zooms, it does not jump


def test_shots_fade_into_each_other(film: bytes) -> None:
    from trimtab_film.film import FADE_FRAMES, FRAMES_PER_S

    frames = frames_of(film)
    cut = round((1.3 + 1.0) * FRAMES_PER_S)
    before, after = frames[cut - 1], frames[cut + FADE_FRAMES]
    middle = frames[cut + FADE_FRAMES // 2 - 1]
    whole = np.abs(after - before).mean()
    assert np.abs(middle - before).mean() < 0.75 * whole
    assert np.abs(middle - after).mean() < 0.75 * whole


def test_captions_hold_every_word_in_order_and_fit() -> None:
    pytest.importorskip("PIL", reason="needs the extra models")
    from PIL import ImageFont
    from trimtab_film.film import FONT_PX, SIDE_PX, caption_lines, caption_strips

    sentence = " ".join(SENTENCES)
    lines, font = caption_lines(sentence), ImageFont.load_default(FONT_PX)
    assert " ".join(lines).split() == sentence.split()
    assert max(font.getlength(line) for line in lines) < SIDE_PX - 20
    strips = caption_strips(sentence)
    starts = [strip.start_frac for strip in strips]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert len(strips) == -(-len(lines) // 2)
    for strip in strips:
        assert strip.corner_px[0] > 0
        assert strip.corner_px[1] + strip.image.height < SIDE_PX


def test_captions_are_in_the_film(film: bytes) -> None:
    """The strip's middle is darker than the land around it, and has bright letters."""
    frame = frames_of(film)[12]
    strip = frame[470:498, 120:390].mean(2)
    assert strip.max() > 200
    assert np.median(strip) < 130


def test_parts_of_different_number_are_refused(parts: Any) -> None:
    pytest.importorskip("av", reason="needs the extra models")
    from trimtab_film.film import Film

    panels, pictures, speech = parts
    with pytest.raises(ChainError, match="differ in number"):
        Film()(panels, pictures[:1], speech)
    with pytest.raises(ChainError, match="differ in number"):
        Film()([], [], [])


@pytest.mark.slow
def test_the_voice_speaks_every_word() -> None:
    """Longer sentences take longer, at a rate at which people speak; the sound is no silence."""
    pytest.importorskip("hibari", reason="needs the extra models")
    from trimtab_film.film_stages import Voice

    voice = Voice()
    spoken = [samples_of(voice({"sentence": sentence})) for sentence in SENTENCES]
    for samples, sentence in zip(spoken, SENTENCES, strict=True):
        assert 1.5 < len(sentence.split()) / (len(samples) / SPEECH_HZ) < 5
        assert np.sqrt(np.mean(samples**2)) > 0.01
    assert len(spoken[0]) < len(spoken[1])
