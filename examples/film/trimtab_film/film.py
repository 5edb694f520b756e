"""The film: pictures that move slowly, cross-fades, captions, speech; H.264 and AAC in MP4."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.errors import ChainError
from trimtab_film.extras import require
from trimtab_film.film_stages import SPEECH_HZ, samples_of

if TYPE_CHECKING:
    from PIL import Image

SIDE_PX = 512
FRAMES_PER_S = 24
BEFORE_S, AFTER_S = 0.35, 0.65  # silence around the speech of a panel
FADE_FRAMES = 12
ZOOM_FRAC = 0.09  # of the picture's side that the view grows or shrinks by
AAC_SAMPLES = 1024
FONT_PX, LINE_PX, MARGIN_PX = 20, 25, 12
LINES_AT_A_TIME = 2


class Film:
    """Joins pictures and speech."""

    def __init__(self) -> None:
        require("", "the film", "av", "PIL")

    def __call__(self, panels: list[dict[str, str]], pictures: list[bytes], speech: list[bytes]) -> bytes:
        """Make the film. Raises ChainError where the three lists have different lengths."""
        if not len(panels) == len(pictures) == len(speech) or not panels:
            raise ChainError(
                "panels, pictures and speech differ in number",
                value=(len(panels), len(pictures), len(speech)),
                expected="as many of each, at least one",
            )
        shots = [_shot(k, *parts) for k, parts in enumerate(zip(panels, pictures, speech, strict=True))]
        return _encode(shots)


@dataclass(frozen=True)
class Strip:
    """Lines of a caption, where they lie, and in which part of the shot they begin."""

    start_frac: float
    image: Image.Image
    corner_px: tuple[int, int]


@dataclass(frozen=True)
class Shot:
    """One panel as it is filmed."""

    picture: Image.Image
    strips: list[Strip]
    samples: np.ndarray
    pan_x: float  # where the closest view lies, from 0 (left) to 1
    moves_in: bool


def _shot(number: int, panel: dict[str, str], picture: bytes, speech: bytes) -> Shot:
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    quiet = [np.zeros(round(seconds * SPEECH_HZ), np.float32) for seconds in (BEFORE_S, AFTER_S)]
    samples = np.concatenate([quiet[0], samples_of(speech), quiet[1]])
    return Shot(
        image, caption_strips(panel["sentence"]), samples, 0.3 if number % 2 == 0 else 0.7, number % 2 == 0
    )


def caption_strips(sentence: str) -> list[Strip]:
    """Draw a caption, two lines at a time; each pair begins where its share of the letters does."""
    from PIL import ImageFont

    font, lines = ImageFont.load_default(FONT_PX), caption_lines(sentence)
    strips: list[Strip] = []
    letters = 0
    for k in range(0, len(lines), LINES_AT_A_TIME):
        shown = lines[k : k + LINES_AT_A_TIME]
        strips.append(_strip(shown, font, letters / len(sentence)))
        letters += sum(len(line) + 1 for line in shown)
    return strips


def caption_lines(sentence: str) -> list[str]:
    """Break a sentence into lines of about equal length that fit."""
    from PIL import ImageFont

    return _wrapped(sentence, ImageFont.load_default(FONT_PX).getlength)


def _strip(lines: Sequence[str], font: Any, start_frac: float) -> Strip:
    """Draw lines on a dark, half transparent ground, for the middle of the lower edge."""
    from PIL import Image, ImageDraw

    widest = max(font.getlength(line) for line in lines)
    width, height = round(widest) + 2 * MARGIN_PX, LINE_PX * len(lines) + 8
    image = Image.new("RGBA", (width, height))
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((0, 0, width - 1, height - 1), 12, fill=(18, 22, 44, 170))
    for k, line in enumerate(lines):
        draw.text((width / 2, 4 + LINE_PX * (k + 0.5)), line, (255, 250, 238, 255), font, "mm")
    return Strip(start_frac, image, ((SIDE_PX - width) // 2, SIDE_PX - MARGIN_PX - height))


def _wrapped(sentence: str, width_px: Any) -> list[str]:
    room = SIDE_PX - 5 * MARGIN_PX
    count = max(1, -(-round(width_px(sentence)) // room))
    while True:
        lines = _broken(sentence, width_px, min(room, width_px(sentence) / count * 1.12))
        if len(lines) <= count or count >= len(sentence.split()):
            return lines
        count += 1


def _broken(sentence: str, width_px: Any, room_px: float) -> list[str]:
    lines = [""]
    for word in sentence.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_px(longer) > room_px:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _frames(shots: Sequence[Shot]) -> Iterator[np.ndarray]:
    """Give all frames. They are counted by the samples so far, so picture and speech cannot drift apart."""
    samples = frames = 0
    last: np.ndarray | None = None
    for shot in shots:
        samples += len(shot.samples)
        count = round(samples * FRAMES_PER_S / SPEECH_HZ) - frames
        frames += count
        shown = None
        for k in range(count):
            shown = _view(shot, k / max(1, count - 1))
            if last is not None and k < FADE_FRAMES:
                shown = _blend(last, shown, (k + 1) / (FADE_FRAMES + 1))
            yield shown
        last = shown if shown is not None else last


def _view(shot: Shot, progress: float) -> np.ndarray:
    """Cut the frame out of the picture at its own sharpness, and lay the caption over it."""
    from PIL import Image

    side = shot.picture.width
    eased = progress * progress * (3 - 2 * progress)
    cut = side * ZOOM_FRAC * (eased if shot.moves_in else 1 - eased)
    x, y = cut * shot.pan_x, cut * 0.45
    view = shot.picture.resize(
        (SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR, (x, y, x + side - cut, y + side - cut)
    )
    strip = next(strip for strip in reversed(shot.strips) if strip.start_frac <= progress)
    view.paste(strip.image, strip.corner_px, strip.image)
    return np.asarray(view)


def _blend(first: np.ndarray, second: np.ndarray, second_frac: float) -> np.ndarray:
    mixed: np.ndarray = (first * (1 - second_frac) + second * second_frac).astype(np.uint8)
    return mixed


def _encode(shots: Sequence[Shot]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "film.mp4")
        _write(shots, file)
        return file.read_bytes()


def _write(shots: Sequence[Shot], file: Path) -> None:
    """Write the film, its index first, for which the writer has to open the file again."""
    import av

    with av.open(str(file), "w", options={"movflags": "+faststart"}) as out:
        video = out.add_stream("libx264", rate=FRAMES_PER_S, options={"crf": "19", "preset": "veryfast"})
        video.width = video.height = SIDE_PX
        video.pix_fmt = "yuv420p"
        audio = out.add_stream("aac", rate=SPEECH_HZ, layout="mono")
        for k, shown in enumerate(_frames(shots)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")
            frame.pts, frame.time_base = k, Fraction(1, FRAMES_PER_S)
            out.mux(video.encode(frame))
        out.mux(video.encode())
        for sound in _sound(np.concatenate([shot.samples for shot in shots])):
            out.mux(audio.encode(sound))
        out.mux(audio.encode())


def _sound(samples: np.ndarray) -> Iterator[Any]:
    import av

    for start in range(0, len(samples), AAC_SAMPLES):
        part = np.ascontiguousarray(samples[None, start : start + AAC_SAMPLES])
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = SPEECH_HZ, start, Fraction(1, SPEECH_HZ)
        yield frame


@dataclass(frozen=True)
class Probe:
    """The contents of a film file, found by decoding all of it."""

    video_codec: str
    audio_codec: str
    width_px: int
    height_px: int
    frames: int
    video_s: float
    audio_s: float


def probe(film: bytes) -> Probe:
    """Decode a film and measure it."""
    require("", "the film", "av")
    import av

    with av.open(io.BytesIO(film)) as file:
        video, audio = file.streams.video[0], file.streams.audio[0]
        frames = sum(1 for _ in file.decode(video))
        file.seek(0)
        samples = sum(frame.samples for frame in file.decode(audio))
        rate = float(video.average_rate or FRAMES_PER_S)
        return Probe(
            video.codec_context.name,
            audio.codec_context.name,
            video.width,
            video.height,
            frames,
            frames / rate,
            samples / audio.rate,
        )
