"""The heroes: five animals that sit, wave or sleep, seen from the front and about 54 units high."""

from __future__ import annotations

from trimtab_film.drawing.canvas import Canvas, Colour, Point, lit, mix

ANIMAL_RGB: dict[str, Colour] = {
    "red": (206, 66, 56),
    "orange": (242, 138, 52),
    "white": (246, 242, 236),
    "grey": (146, 150, 164),
    "brown": (150, 98, 62),
    "blue": (88, 142, 222),
}
Light = tuple[float, float, float]
INK: Colour = (36, 30, 40)
HEAD_Y, BODY_Y = -30.0, -11.0  # over the base line


class Animal:
    """Colours and place of the hero while it is drawn."""

    def __init__(self, canvas: Canvas, x: float, base: float, colour: Colour, light: Light) -> None:
        soft = tuple(0.35 + 0.65 * v for v in light)
        self.light: Light = (
            soft[0],
            soft[1],
            soft[2],
        )  # the hero stands out: it keeps a third of its own light
        self.canvas, self.x, self.base = canvas, x, base
        self.main = lit(colour, self.light)
        self.dark = lit(self.main, (0.62, 0.58, 0.64))
        self.pale = mix(self.main, lit((255, 248, 238), self.light), 0.72)
        self.pink = lit((244, 150, 160), self.light)

    def at(self, dx: float, dy: float) -> Point:
        """Place a point by its offset from the foot of the hero."""
        return (self.x + dx, self.base + dy)

    def ellipse(
        self, dx: float, dy: float, rx: float, ry: float, colour: Colour, outline: bool = True
    ) -> None:
        """Fill an ellipse, with a dark rim."""
        x, y = self.at(dx, dy)
        if outline:
            self.canvas.ellipse(x, y, rx + 0.7, ry + 0.7, self.dark)
        self.canvas.ellipse(x, y, rx, ry, colour)

    def blob(self, offsets: list[Point], colour: Colour) -> None:
        """Fill a smooth shape, with a dark rim."""
        points = [self.at(*p) for p in offsets]
        cx, cy = sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)
        reach = max(abs(p[0] - cx) + abs(p[1] - cy) for p in points)
        grow = 1 + 1.0 / reach
        self.canvas.blob([(cx + (px - cx) * grow, cy + (py - cy) * grow) for px, py in points], self.dark)
        self.canvas.blob(points, colour)


def draw_animal(name: str, pose: str, animal: Animal) -> None:
    """Draw tail, body, arms and head over each other."""
    a = animal
    a.canvas.shadow(a.x, a.base + 0.8, 17, 2.8)
    {"fox": _fox_tail, "cat": _cat_tail, "rabbit": _round_tail, "bear": _round_tail, "owl": _owl_tail}[name](
        a
    )
    _body(a, name)
    _arms(a, name, pose)
    {"fox": _fox_ears, "cat": _cat_ears, "rabbit": _rabbit_ears, "bear": _bear_ears, "owl": _owl_ears}[name](
        a
    )
    a.ellipse(0, HEAD_Y, 15.5, 12.8, a.main)
    _face(a, name)
    _eyes(a, name, pose)


def _body(a: Animal, name: str) -> None:
    a.ellipse(0, BODY_Y, 12, 11.6, a.main)
    a.ellipse(0, BODY_Y + 1.6, 7.4, 8.2, a.pale, outline=False)
    if name == "owl":
        for k in range(2):
            for dx in (-3.4, 0, 3.4):
                a.canvas.arc(
                    *a.at(dx + 1.7 * (k % 2) - 0.8, BODY_Y - 2 + 4.5 * k), 1.6, 1.6, 20, 160, 0.7, a.dark
                )
    foot = lit((240, 160, 60), a.light) if name == "owl" else a.main
    for dx in (-6.5, 6.5):
        a.ellipse(dx, -0.9, 5, 2.8, foot)


def _arms(a: Animal, name: str, pose: str) -> None:
    if name == "owl":
        a.blob([(-11, -19), (-14.5, -10), (-11, -3), (-9, -10)], a.dark)
    else:
        a.ellipse(-9.4, -11.5, 3.3, 6.4, a.main)
    if pose == "waving":
        a.blob(
            [(9, -15), (15, -24), (20.5, -33), (24, -29), (20, -20), (12, -10)],
            a.dark if name == "owl" else a.main,
        )
    elif name == "owl":
        a.blob([(11, -19), (14.5, -10), (11, -3), (9, -10)], a.dark)
    else:
        a.ellipse(9.4, -11.5, 3.3, 6.4, a.main)


def _face(a: Animal, name: str) -> None:
    if name == "fox":
        for s in (-1, 1):
            a.canvas.blob(
                [
                    a.at(s * 14.6, HEAD_Y + 1),
                    a.at(s * 7, HEAD_Y + 2),
                    a.at(s * 0.2, HEAD_Y + 7),
                    a.at(s * 1, HEAD_Y + 12.4),
                    a.at(s * 9, HEAD_Y + 9.6),
                ],
                a.pale,
            )
    elif name == "owl":
        for dx in (-6.2, 6.2):
            a.ellipse(dx, HEAD_Y - 1, 6.8, 7, a.pale, outline=False)
    else:
        a.ellipse(0, HEAD_Y + 6.4, 6.6, 4.6, a.pale, outline=False)
    if name == "owl":
        beak = lit((246, 168, 60), a.light)
        a.canvas.polygon([a.at(-2.4, HEAD_Y + 2), a.at(2.4, HEAD_Y + 2), a.at(0, HEAD_Y + 7.4)], beak)
        return
    nose = a.pink if name in ("cat", "rabbit") else INK
    a.ellipse(
        0, HEAD_Y + 4.4, 2.0 if name != "bear" else 2.8, 1.5 if name != "bear" else 2.0, nose, outline=False
    )
    for s in (-1, 1):
        a.canvas.arc(*a.at(s * 1.7, HEAD_Y + 6.2), 1.7, 1.9, 0, 180, 0.7, INK)
    for dx in (-10.8, 10.8):
        a.ellipse(dx, HEAD_Y + 4.6, 2.5, 1.6, mix(a.pink, a.main, 0.25), outline=False)


def _eyes(a: Animal, name: str, pose: str) -> None:
    spread, big = (6.2, 1.35) if name == "owl" else (6.4, 1.0)
    for s in (-1, 1):
        x, y = a.at(s * spread, HEAD_Y - 1.4)
        if pose == "sleeping":
            a.canvas.arc(x, y, 2.8, 2.2, 15, 165, 1.0, INK)
            continue
        a.canvas.ellipse(x, y, 2.5 * big, 3.3 * big, INK)
        a.canvas.ellipse(x + 0.8, y - 1.3 * big, 0.95 * big, 1.15 * big, (255, 255, 255))
    if pose == "sleeping":
        x, y = a.at(17, HEAD_Y - 14)
        for k, r in enumerate((1.3, 2.0, 2.8)):
            a.canvas.ellipse(x + 3.6 * k, y - 5.2 * k, r, r, lit((236, 242, 252), a.light))


def _fox_tail(a: Animal) -> None:
    a.blob([(-6, -3), (-16, -2), (-24, -10), (-25, -22), (-19, -27), (-15, -17), (-9, -11)], a.main)
    a.canvas.blob([a.at(*p) for p in ((-24.8, -17), (-25.2, -23), (-19.4, -27.2), (-17, -20.5))], a.pale)


def _cat_tail(a: Animal) -> None:
    points = [a.at(*p) for p in ((-8, -4), (-16, -4), (-20, -9), (-19, -17), (-22, -23), (-20, -27))]
    a.canvas.line(points, 5.2, a.dark)
    a.canvas.line(points, 3.8, a.main)


def _round_tail(a: Animal) -> None:
    a.ellipse(-13, -6, 4.4, 4.4, a.pale)


def _owl_tail(a: Animal) -> None:
    a.blob([(-4, -4), (-10, 1.5), (-4, 3), (4, 3), (10, 1.5), (4, -4)], a.dark)


def _pointed_ears(a: Animal, outer: float, height: float) -> None:
    for s in (-1, 1):
        a.canvas.polygon(
            [
                a.at(s * (outer + 1), HEAD_Y - 1),
                a.at(s * (outer + 0.4), HEAD_Y - height - 1.6),
                a.at(s * 1.2, HEAD_Y - 10),
            ],
            a.dark,
        )
        a.canvas.polygon(
            [
                a.at(s * outer, HEAD_Y - 1.5),
                a.at(s * (outer - 0.4), HEAD_Y - height),
                a.at(s * 2.4, HEAD_Y - 9),
            ],
            a.main,
        )
        a.canvas.polygon(
            [
                a.at(s * (outer - 2), HEAD_Y - 5),
                a.at(s * (outer - 2), HEAD_Y - height + 4),
                a.at(s * 6, HEAD_Y - 9),
            ],
            a.pink,
        )


def _fox_ears(a: Animal) -> None:
    _pointed_ears(a, 14.6, 23)


def _cat_ears(a: Animal) -> None:
    _pointed_ears(a, 13.6, 18)


def _rabbit_ears(a: Animal) -> None:
    for s in (-1, 1):
        a.ellipse(s * 6, HEAD_Y - 18, 4, 12, a.main)
        a.ellipse(s * 6, HEAD_Y - 17, 1.9, 8.6, a.pink, outline=False)


def _bear_ears(a: Animal) -> None:
    for s in (-1, 1):
        a.ellipse(s * 11, HEAD_Y - 10, 5.2, 5.2, a.main)
        a.ellipse(s * 11, HEAD_Y - 9.4, 2.8, 2.8, a.pale, outline=False)


def _owl_ears(a: Animal) -> None:
    for s in (-1, 1):
        a.canvas.polygon(
            [a.at(s * 15.6, HEAD_Y - 4), a.at(s * 14.6, HEAD_Y - 17.6), a.at(s * 4, HEAD_Y - 11)], a.dark
        )
