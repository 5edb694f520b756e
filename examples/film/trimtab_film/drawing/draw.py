"""A scene as a drawing."""

from __future__ import annotations

import random

from PIL import Image, ImageOps

from trimtab_film.drawing.animals import ANIMAL_RGB, Animal, draw_animal
from trimtab_film.drawing.backgrounds import MOODS, draw_place, draw_sky
from trimtab_film.drawing.canvas import Canvas
from trimtab_film.drawing.things import THING_RGB, Thing, draw_thing
from trimtab_film.scenes import Scene

HERO_X, THING_X = 31.0, 72.0
HERO_BASE, THING_BASE = 88.0, 82.0


def draw_scene(scene: Scene, rng: random.Random, size_px: int = 512, oversample: int = 2) -> Image.Image:
    """Draw a scene; `rng` moves its parts a little. A hero on the right is the mirrored picture."""
    canvas, mood = Canvas(size_px, oversample), MOODS[scene.time]
    draw_sky(canvas, scene.sky, mood, rng)
    draw_place(canvas, scene.place, mood)
    thing_x, thing_base = THING_X + rng.uniform(-1, 1), THING_BASE + rng.uniform(-0.7, 0.7)
    thing = Thing(
        canvas, thing_x, thing_base, THING_RGB[scene.thing_colour], mood.light, scene.time == "night"
    )
    draw_thing(scene.thing, thing)
    hero_x, hero_base = HERO_X + rng.uniform(-1, 1), HERO_BASE + rng.uniform(-0.7, 0.7)
    draw_animal(
        scene.animal, scene.pose, Animal(canvas, hero_x, hero_base, ANIMAL_RGB[scene.colour], mood.light)
    )
    picture = canvas.picture()
    return ImageOps.mirror(picture) if scene.side == "right" else picture
