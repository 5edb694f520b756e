"""Things that stand beside the hero. Each is about 45 units high over its base line."""

from __future__ import annotations

import math

from trimtab_film.drawing.canvas import Canvas, Colour, lit, mix

THING_RGB: dict[str, Colour] = {
    "red": (222, 68, 60),
    "orange": (242, 144, 50),
    "yellow": (248, 208, 70),
    "green": (76, 170, 92),
    "blue": (66, 122, 220),
    "purple": (146, 90, 196),
    "pink": (244, 142, 180),
}
Light = tuple[float, float, float]
CREAM: Colour = (252, 240, 216)
WOOD: Colour = (134, 88, 56)


class Thing:
    """Colours and place of a thing while it is drawn."""

    def __init__(
        self, canvas: Canvas, x: float, base: float, colour: Colour, light: Light, night: bool
    ) -> None:
        self.canvas, self.x, self.base, self.light = canvas, x, base, light
        self.main = lit(colour, light)
        self.dark = lit(self.main, (0.74, 0.70, 0.76))
        self.pale = mix(self.main, lit((255, 255, 255), light), 0.35)
        self.window: Colour = (255, 226, 120) if night else lit((255, 240, 176), light)

    def shade(self, colour: Colour) -> Colour:
        """Show a colour of its own in the light of the scene."""
        return lit(colour, self.light)


def draw_thing(name: str, thing: Thing) -> None:
    """Draw the thing on a soft shadow."""
    if name != "balloon":
        thing.canvas.shadow(thing.x, thing.base, 20, 2.6)
    {
        "house": _house,
        "tree": _tree,
        "boat": _boat,
        "balloon": _balloon,
        "castle": _castle,
        "lighthouse": _lighthouse,
        "mushroom": _mushroom,
    }[name](thing)


def _house(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    c.box(x + 7, y - 46, x + 12, y - 32, t.dark)
    c.box(x - 16, y - 26, x + 16, y, t.shade(CREAM))
    c.polygon([(x - 21, y - 25), (x, y - 46), (x + 21, y - 25)], t.main)
    c.polygon([(x - 21, y - 25), (x - 18, y - 28), (x + 18, y - 28), (x + 21, y - 25)], t.dark)
    c.box(x - 4, y - 15, x + 5, y, t.main)
    c.ellipse(x + 3, y - 7, 0.8, 0.8, t.window)
    for dx in (-12, 8):
        c.box(x + dx - 0.8, y - 20.8, x + dx + 6.3, y - 11.2, t.shade(WOOD))
        c.box(x + dx, y - 20, x + dx + 5.5, y - 12, t.window)
    c.ellipse(x, y - 34, 3.4, 3.4, t.window)


def _tree(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    c.polygon([(x - 5, y), (x - 2.6, y - 24), (x + 2.6, y - 24), (x + 5, y)], t.shade(WOOD))
    crown = ((0, -37, 15, 14), (-11, -28, 11, 10), (11, -28, 11, 10), (0, -25, 12, 8))
    for dx, dy, rx, ry in crown:
        c.ellipse(x + dx, y + dy + 1.4, rx, ry, t.dark)
    for dx, dy, rx, ry in crown:
        c.ellipse(x + dx, y + dy - 0.6, rx - 0.6, ry - 0.6, t.main)
    for dx, dy, r in ((-6, -42, 4.5), (5, -35, 3), (-12, -30, 3), (11, -30, 3.2)):
        c.ellipse(x + dx, y + dy, r, r * 0.8, t.pale)


def _boat(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    c.box(x - 1, y - 46, x + 1, y - 10, t.shade(WOOD))
    c.blob([(x + 2.5, y - 45), (x + 13, y - 28), (x + 19, y - 14), (x + 2.5, y - 14)], t.shade(CREAM))
    c.polygon([(x - 2.5, y - 40), (x - 2.5, y - 14), (x - 16, y - 14)], t.pale)
    c.polygon([(x, y - 47), (x, y - 42), (x + 7, y - 44.5)], t.main)
    c.polygon([(x - 21, y - 11), (x + 21, y - 11), (x + 14, y), (x - 14, y)], t.main)
    c.polygon([(x - 17.5, y - 5), (x + 17.5, y - 5), (x + 14, y), (x - 14, y)], t.dark)
    c.box(x - 21, y - 12.4, x + 21, y - 10.4, t.shade(CREAM))


def _envelope(
    x: float, y: float, upper: float, half_widths: tuple[float, float, float]
) -> list[tuple[float, float]]:
    """A balloon's outline from its top, with half its width at `upper`, in the middle and at the mouth."""
    right = list(zip(half_widths, (upper, 32, 17), strict=True))
    return [
        (x, y - 50),
        *((x + dx, y - dy) for dx, dy in right),
        *((x - dx, y - dy) for dx, dy in reversed(right)),
    ]


def _balloon(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base - 10
    for dx in (-4.5, 4.5):
        c.line([(x + dx * 2, y - 20), (x + dx * 0.8, y - 7)], 0.7, t.shade(WOOD))
    c.blob(_envelope(x, y, 44, (15, 18, 6)), t.main)
    c.blob(_envelope(x, y, 42, (8, 9, 3)), t.shade(CREAM))
    c.blob(_envelope(x, y, 42, (3, 3.4, 1.2)), t.main)
    c.box(x - 4.6, y - 8, x + 4.6, y - 1, t.shade((176, 122, 74)))
    c.box(x - 5.4, y - 9, x + 5.4, y - 7, t.dark)


def _castle(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    stone, shadow = t.shade((226, 218, 214)), t.shade((196, 188, 194))
    for dx in (-16, 16):
        c.box(x + dx - 5, y - 32, x + dx + 5, y, shadow)
        c.polygon([(x + dx - 7, y - 31), (x + dx, y - 47), (x + dx + 7, y - 31)], t.main)
        c.box(x + dx - 1.5, y - 26, x + dx + 1.5, y - 20, t.window)
    c.box(x - 12, y - 24, x + 12, y, stone)
    for k in range(4):
        c.box(x - 12 + 6.7 * k, y - 27, x - 8 + 6.7 * k, y - 23, stone)
    c.box(x - 5, y - 36, x + 5, y - 24, stone)
    c.polygon([(x - 7.5, y - 35), (x, y - 50), (x + 7.5, y - 35)], t.main)
    c.ellipse(x, y - 30, 1.8, 2.4, t.window)
    c.ellipse(x, y - 10, 4.6, 4.6, t.shade((96, 64, 56)))
    c.box(x - 4.6, y - 10, x + 4.6, y, t.shade((96, 64, 56)))


def _lighthouse(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    c.glow(x, y - 41, 13, (255, 240, 170), 0.7)

    def half(height: float) -> float:
        return 9 - 4 * height / 36

    for k in range(4):
        low, high = 9.0 * k, 9.0 * (k + 1)
        band = [
            (x - half(low), y - low),
            (x - half(high), y - high),
            (x + half(high), y - high),
            (x + half(low), y - low),
        ]
        c.polygon(band, t.main if k % 2 == 0 else t.shade((252, 248, 240)))
    c.box(x - 7, y - 37.5, x + 7, y - 35.5, t.dark)
    c.box(x - 3.8, y - 44, x + 3.8, y - 37.5, (255, 236, 140))
    c.polygon([(x - 6, y - 44), (x, y - 51), (x + 6, y - 44)], t.main)
    c.box(x - 2.4, y - 7, x + 2.4, y, t.shade(WOOD))
    c.ellipse(x, y - 22, 1.6, 2.2, t.window)


def _mushroom(t: Thing) -> None:
    c, x, y = t.canvas, t.x, t.base
    c.blob(
        [(x - 7, y - 24), (x - 6, y - 8), (x - 8.5, y), (x + 8.5, y), (x + 6, y - 8), (x + 7, y - 24)],
        t.shade(CREAM),
    )
    cap = [
        (x + 22 * math.cos(math.radians(a)), y - 22 - 22 * math.sin(math.radians(a)))
        for a in range(0, 181, 12)
    ]
    c.polygon(cap, t.main)
    c.ellipse(x, y - 22, 22, 4, t.main)
    c.ellipse(x, y - 20.6, 12, 2.2, t.dark)
    for dx, dy, r in ((-10, -30, 3.4), (2, -37, 3.8), (12, -29, 3.2), (0, -27, 2.4)):
        c.ellipse(x + dx, y + dy, r, r * 0.85, t.shade((255, 250, 240)))
    c.box(x - 2.6, y - 9, x + 2.6, y, t.shade(WOOD))
    c.ellipse(x, y - 9, 2.6, 2.6, t.shade(WOOD))
