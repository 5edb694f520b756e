"""A picture with coordinates from 0 to 100, drawn at twice its size and reduced at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]


def mix(first: Colour, second: Colour, second_frac: float) -> Colour:
    """Blend two colours."""
    r, g, b = (round(p + (q - p) * second_frac) for p, q in zip(first, second, strict=True))
    return (r, g, b)


def lit(colour: Colour, light: tuple[float, float, float]) -> Colour:
    """Show a colour in a light: each channel times the light's."""
    r, g, b = (max(0, min(255, round(c * f))) for c, f in zip(colour, light, strict=True))
    return (r, g, b)


def smooth(points: Sequence[Point], steps: int = 8) -> list[Point]:
    """Run a closed Catmull-Rom curve through the points."""
    curve = []
    n = len(points)
    for i in range(n):
        p0, p1, p2, p3 = (points[(i + k - 1) % n] for k in range(4))
        for s in range(steps):
            t = s / steps
            w0, w1 = -0.5 * t + t**2 - 0.5 * t**3, 1 - 2.5 * t**2 + 1.5 * t**3
            w2, w3 = 0.5 * t + 2 * t**2 - 1.5 * t**3, -0.5 * t**2 + 0.5 * t**3
            curve.append(
                (
                    w0 * p0[0] + w1 * p1[0] + w2 * p2[0] + w3 * p3[0],
                    w0 * p0[1] + w1 * p1[1] + w2 * p2[1] + w3 * p3[1],
                )
            )
    return curve


class Canvas:
    """Shapes in units of a hundredth of the picture's side; y points down."""

    def __init__(self, size_px: int, oversample: int = 2) -> None:
        self.size_px = size_px
        self.full_px = size_px * oversample
        self.image = Image.new("RGB", (self.full_px, self.full_px))
        self.draw = ImageDraw.Draw(self.image)
        self.unit = self.full_px / 100

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: Colour) -> None:
        """Fill an ellipse given by its centre and radii."""
        u = self.unit
        self.draw.ellipse([(x - rx) * u, (y - ry) * u, (x + rx) * u, (y + ry) * u], fill=colour)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """Fill a polygon."""
        self.draw.polygon([(x * self.unit, y * self.unit) for x, y in points], fill=colour)

    def blob(self, points: Sequence[Point], colour: Colour) -> None:
        """Fill the smooth closed curve through the points."""
        self.polygon(smooth(points), colour)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        """Fill a rectangle."""
        u = self.unit
        self.draw.rectangle([x0 * u, y0 * u, x1 * u, y1 * u], fill=colour)

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """Stroke a line of the given width, with round ends."""
        u = self.unit
        self.draw.line(
            [(x * u, y * u) for x, y in points], fill=colour, width=round(width * u), joint="curve"
        )
        for x, y in (points[0], points[-1]):
            self.ellipse(x, y, width / 2, width / 2, colour)

    def arc(
        self, x: float, y: float, rx: float, ry: float, start: float, end: float, width: float, colour: Colour
    ) -> None:
        """Stroke a part of an ellipse, from angle to angle in degrees, clockwise from the right."""
        steps = 16
        angles = [math.radians(start + (end - start) * k / steps) for k in range(steps + 1)]
        self.line([(x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles], width, colour)

    def gradient(self, y0: float, y1: float, colours: Sequence[Colour]) -> None:
        """Fill the whole width between two heights, from one colour to the next."""
        top, bottom = round(y0 * self.unit), round(y1 * self.unit)
        for row in range(top, bottom):
            place = (row - top) / max(1, bottom - top) * (len(colours) - 1)
            k = min(int(place), len(colours) - 2)
            self.draw.line([(0, row), (self.full_px, row)], fill=mix(colours[k], colours[k + 1], place - k))

    def glow(self, x: float, y: float, radius: float, colour: Colour, strength_frac: float) -> None:
        """Lighten the picture around a point, less with the distance."""
        side = round(2 * radius * self.unit)
        near = (
            Image.radial_gradient("L")
            .resize((side, side))
            .point(lambda v: round(max(0, 255 - 1.4 * v) * strength_frac))
        )
        corner = (round((x - radius) * self.unit), round((y - radius) * self.unit))
        self.image.paste(Image.new("RGB", (side, side), colour), corner, near)

    def shadow(self, x: float, y: float, rx: float, ry: float) -> None:
        """Darken the ground under something."""
        box = (
            round((x - rx) * self.unit),
            round((y - ry) * self.unit),
            round((x + rx) * self.unit),
            round((y + ry) * self.unit),
        )
        mask = Image.new("L", (box[2] - box[0], box[3] - box[1]))
        ImageDraw.Draw(mask).ellipse([0, 0, mask.width - 1, mask.height - 1], fill=90)
        self.image.paste(Image.new("RGB", mask.size, (24, 32, 60)), box[:2], mask)

    def picture(self) -> Image.Image:
        """Reduce the drawing to its size."""
        return self.image.resize((self.size_px, self.size_px), Image.Resampling.BOX)
