"""Skies and places behind hero and thing."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from trimtab_film.drawing.canvas import Canvas, Colour, lit, mix

Light = tuple[float, float, float]


@dataclass(frozen=True)
class Mood:
    """Colours of a time of day: sky from top to horizon, light on things, haze over what is far."""

    sky: tuple[Colour, ...]
    light: Light
    haze: Colour


MOODS = {
    "morning": Mood(((132, 190, 226), (246, 214, 206), (255, 232, 196)), (1.0, 0.95, 0.90), (250, 222, 206)),
    "day": Mood(((70, 158, 232), (148, 208, 248), (214, 240, 252)), (1.0, 1.0, 1.0), (196, 226, 244)),
    "sunset": Mood(((88, 60, 132), (232, 104, 104), (255, 196, 112)), (0.98, 0.78, 0.72), (240, 140, 112)),
    "night": Mood(((12, 16, 52), (30, 40, 96), (66, 84, 150)), (0.54, 0.60, 0.86), (52, 66, 128)),
}
HORIZON_Y = 58.0
RAINBOW: tuple[Colour, ...] = (
    (232, 84, 84),
    (246, 160, 72),
    (250, 222, 96),
    (110, 192, 112),
    (92, 140, 228),
    (152, 104, 204),
)


def draw_sky(canvas: Canvas, sky: str, mood: Mood, rng: random.Random) -> None:
    """Draw the sky down to the horizon, and what shines in it."""
    canvas.gradient(0, HORIZON_Y, mood.sky)
    canvas.box(0, HORIZON_Y, 100, 100, mood.haze)
    x, y = 50 + rng.uniform(-1.5, 1.5), 17 + rng.uniform(-1, 1)
    if sky in ("moon", "stars"):
        _stars(canvas, many=sky == "stars")
    {"sun": _sun, "moon": _moon, "clouds": _clouds, "rainbow": _rainbow, "stars": _comet}[sky](
        canvas, x, y, mood
    )


def _sun(canvas: Canvas, x: float, y: float, mood: Mood) -> None:
    low = mood is MOODS["sunset"]
    y = y + 20 if low else y
    canvas.glow(x, y, 34, (255, 236, 170), 0.75)
    canvas.ellipse(x, y, 10.5, 10.5, (255, 214, 110) if low else (255, 236, 150))
    canvas.ellipse(x, y, 9, 9, (255, 176, 84) if low else (255, 222, 92))


def _moon(canvas: Canvas, x: float, y: float, _: Mood) -> None:
    canvas.glow(x, y, 32, (190, 204, 255), 0.6)
    canvas.ellipse(x, y, 10.5, 10.5, (250, 244, 214))
    for dx, dy, r in ((-3.5, -2.5, 2.4), (3.2, 2.6, 3.0), (-2.2, 5.2, 1.5), (3.8, -4.8, 1.4)):
        canvas.ellipse(x + dx, y + dy, r, r, (228, 218, 182))


def _stars(canvas: Canvas, many: bool) -> None:
    places = random.Random(7)  # the same stars in every picture: noise that a model cannot learn
    for k in range(46 if many else 20):
        x, y, r = places.uniform(2, 98), places.uniform(2, 46), places.choice((0.45, 0.6, 0.9))
        if k % 5 == 0:
            canvas.polygon([(x, y - 3 * r), (x + r, y), (x, y + 3 * r), (x - r, y)], (255, 250, 220))
            canvas.polygon([(x - 3 * r, y), (x, y - r), (x + 3 * r, y), (x, y + r)], (255, 250, 220))
        else:
            canvas.ellipse(x, y, r, r, (240, 240, 255))


def _comet(canvas: Canvas, x: float, y: float, _: Mood) -> None:
    for k in range(24):
        r = 1.3 * (1 - k / 26)
        canvas.ellipse(x + 0.95 * k, y - 0.4 * k, r, r, mix((255, 250, 224), (52, 62, 122), k / 24))
    canvas.ellipse(x, y, 2.2, 2.2, (255, 252, 236))


def _clouds(canvas: Canvas, x: float, y: float, mood: Mood) -> None:
    white = lit((255, 255, 255), tuple(0.35 + 0.65 * v for v in mood.light))  # type: ignore[arg-type]
    for cx, cy, s in ((x, y, 1.15), (x - 33, y + 12, 0.7), (x + 33, y + 8, 0.8)):
        for colour, drop in ((mix(white, mood.haze, 0.5), 1.6), (white, 0.0)):
            for dx, dy, rx, ry in ((-9, 2, 7, 5), (0, -2, 9, 8), (9, 2, 8, 5.5), (0, 4, 14, 4)):
                canvas.ellipse(cx + s * dx, cy + s * dy + drop * s, s * rx, s * ry, colour)


def _rainbow(canvas: Canvas, x: float, _: float, mood: Mood) -> None:
    for k, colour in enumerate(RAINBOW):
        r = 46 - 2.6 * k
        canvas.ellipse(x, HORIZON_Y + 2, r, r, mix(colour, mood.sky[1], 0.25))
    inside = 46 - 2.6 * len(RAINBOW)
    canvas.ellipse(x, HORIZON_Y + 2, inside, inside, mix(mood.sky[1], mood.sky[2], 0.55))


def draw_place(canvas: Canvas, place: str, mood: Mood) -> None:
    """Draw the land from the horizon to the lower edge."""
    {"meadow": _meadow, "snow": _snow, "beach": _beach, "forest": _forest, "lake": _lake}[place](canvas, mood)


def _hills(canvas: Canvas, base: float, height: float, waves: float, phase: float, colour: Colour) -> None:
    top = [
        (float(x), base - height * (0.5 + 0.5 * math.sin(x * waves / 16 + phase))) for x in range(-2, 104, 2)
    ]
    canvas.polygon([*top, (104, 101), (-2, 101)], colour)


def _far(colour: Colour, mood: Mood, distance_frac: float) -> Colour:
    return mix(lit(colour, mood.light), mood.haze, distance_frac)


def _meadow(canvas: Canvas, mood: Mood) -> None:
    _hills(canvas, 60, 12, 1.1, 0.6, _far((120, 186, 120), mood, 0.5))
    _hills(canvas, 66, 10, 0.8, 3.0, _far((116, 190, 92), mood, 0.22))
    _hills(canvas, 76, 4, 0.5, 1.2, lit((104, 184, 76), mood.light))
    places = random.Random(3)
    for k in range(22):
        x, y = places.uniform(2, 98), places.uniform(80, 98)
        canvas.polygon([(x - 1.2, y), (x, y - 3.4), (x + 1.2, y)], lit((82, 160, 64), mood.light))
        if k % 2:
            canvas.ellipse(
                x, y - 3.6, 1.2, 1.2, lit((255, 240, 250) if k % 4 == 1 else (255, 214, 90), mood.light)
            )


def _pine(
    canvas: Canvas, x: float, base: float, height: float, colour: Colour, cap: Colour | None = None
) -> None:
    for k in range(3):
        y, half = base - height * (0.12 + 0.27 * k), height * (0.30 - 0.07 * k)
        canvas.polygon([(x - half, y), (x, y - height * 0.42), (x + half, y)], colour)
        if cap is not None:
            h = 0.4
            canvas.polygon(
                [
                    (x - half * h, y - height * 0.42 * (1 - h)),
                    (x, y - height * 0.42),
                    (x + half * h, y - height * 0.42 * (1 - h)),
                ],
                cap,
            )
    canvas.box(
        x - height * 0.04, base - height * 0.13, x + height * 0.04, base, lit(colour, (0.8, 0.62, 0.6))
    )


def _mountains(canvas: Canvas, mood: Mood, base: float) -> None:
    rock, snow = _far((124, 136, 166), mood, 0.42), _far((250, 252, 255), mood, 0.25)
    for x, height, half in ((12, 26, 26), (88, 30, 28), (50, 20, 26)):
        peak = base - height
        canvas.polygon([(x - half, base), (x, peak), (x + half, base)], rock)
        canvas.polygon([(x, peak), (x + half, base), (x + half * 0.25, base)], mix(rock, mood.haze, 0.3))
        f = 0.36
        edge = [
            (x + half * f * t, peak + height * (f + (0.09 if k % 2 else -0.03)))
            for k, t in enumerate((1, 0.5, 0, -0.5, -1))
        ]
        canvas.polygon([(x, peak), *edge], snow)


def _snow(canvas: Canvas, mood: Mood) -> None:
    _mountains(canvas, mood, 62)
    _hills(canvas, 66, 6, 0.8, 2.0, _far((214, 226, 244), mood, 0.15))
    for x, h in ((3, 20), (97, 22)):
        _pine(canvas, x, 68, h, lit((76, 128, 112), mood.light), lit((240, 246, 252), mood.light))
    _hills(canvas, 76, 4, 0.5, 1.2, lit((240, 246, 254), mood.light))
    for x, y, rx in ((20, 92, 16), (72, 95, 20)):
        canvas.ellipse(x, y, rx, 1.6, lit((218, 230, 246), mood.light))


def _water(canvas: Canvas, mood: Mood, top: float, bottom: float, colour: Colour) -> None:
    near = lit(colour, mood.light)
    canvas.gradient(top, bottom, (mix(near, mood.sky[2], 0.45), near))
    shine = mix(near, mood.sky[2], 0.75)
    for x, k, half in (
        (14, 0.2, 9),
        (58, 0.3, 12),
        (86, 0.55, 9),
        (34, 0.6, 11),
        (70, 0.82, 8),
        (8, 0.85, 7),
    ):
        y = top + (bottom - top) * k
        canvas.ellipse(x, y, half, 0.45, shine)


def _beach(canvas: Canvas, mood: Mood) -> None:
    _water(canvas, mood, HORIZON_Y, 78, (52, 140, 196))
    _hills(canvas, 76.5, 3.2, 0.7, 1.0, lit((252, 252, 246), mood.light))
    _hills(canvas, 78, 3.2, 0.7, 1.0, lit((242, 216, 158), mood.light))
    for x, y, r in ((12, 93, 1.6), (88, 91, 1.4), (50, 96, 1.5)):
        canvas.ellipse(x, y, r * 1.4, r, lit((250, 186, 170), mood.light))
    for x, y in ((28, 96), (70, 95)):
        canvas.ellipse(x, y, 10, 0.8, lit((228, 198, 138), mood.light))


def _forest(canvas: Canvas, mood: Mood) -> None:
    for k in range(11):
        _pine(canvas, 2 + 9.6 * k, 66, 26 + 7 * (k * 5 % 4) / 3, _far((70, 138, 104), mood, 0.45))
    _hills(canvas, 66, 4, 0.9, 0.4, _far((78, 150, 88), mood, 0.25))
    for x, h in ((1, 46), (99, 50), (50, 26)):
        _pine(canvas, x, 74, h, lit((48, 118, 84), mood.light))
    _hills(canvas, 76, 4, 0.5, 1.2, lit((92, 156, 78), mood.light))
    for x, y in ((10, 90), (44, 95), (90, 92), (66, 96)):
        canvas.polygon(
            [(x - 2.6, y), (x - 1.6, y - 4), (x, y - 1.4), (x + 1.6, y - 4.6), (x + 2.6, y)],
            lit((66, 132, 66), mood.light),
        )


def _lake(canvas: Canvas, mood: Mood) -> None:
    _mountains(canvas, mood, 60)
    _hills(canvas, 61, 3, 1.2, 0.2, _far((86, 148, 110), mood, 0.3))
    _water(canvas, mood, 60, 78, (72, 154, 186))
    _hills(canvas, 78, 3, 0.6, 2.6, lit((140, 192, 96), mood.light))
    for x in (3, 6, 94, 97):
        canvas.line([(x, 84), (x + 0.6, 70)], 0.7, lit((104, 150, 76), mood.light))
        canvas.ellipse(x + 0.6, 70, 0.9, 2.6, lit((140, 96, 60), mood.light))
