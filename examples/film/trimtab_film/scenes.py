"""Scenes of the demonstration: what a picture shows, as values and as a caption.

The story model writes captions, the picture model reads them. Both know exactly these words, so a caption has
one form.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

ANIMALS = ("fox", "cat", "rabbit", "bear", "owl")
ANIMAL_COLOURS = ("red", "orange", "white", "grey", "brown", "blue")
POSES = ("sitting", "waving", "sleeping")
SIDES = ("left", "right")
THINGS = ("house", "tree", "boat", "balloon", "castle", "lighthouse", "mushroom")
THING_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink")
PLACES = ("meadow", "snow", "beach", "forest", "lake")
TIMES = ("morning", "day", "sunset", "night")
SKIES = {
    "morning": ("sun", "clouds", "rainbow"),
    "day": ("sun", "clouds", "rainbow"),
    "sunset": ("sun", "clouds"),
    "night": ("moon", "stars"),
}


@dataclass(frozen=True)
class Scene:
    """The contents of a picture. `side` is the hero's; the thing stands on the other one."""

    colour: str
    animal: str
    pose: str
    side: str
    thing_colour: str
    thing: str
    place: str
    time: str
    sky: str

    def caption(self) -> str:
        """Say the scene in the one form that the picture model was trained on."""
        return (
            f"{self.colour} {self.animal} {self.pose} {self.side} , "
            f"{self.thing_colour} {self.thing} , {self.place} {self.time} {self.sky}"
        )


CAPTION = re.compile(
    rf"({'|'.join(ANIMAL_COLOURS)}) ({'|'.join(ANIMALS)}) ({'|'.join(POSES)}) ({'|'.join(SIDES)}) , "
    rf"({'|'.join(THING_COLOURS)}) ({'|'.join(THINGS)}) , "
    rf"({'|'.join(PLACES)}) ({'|'.join(TIMES)}) ({'|'.join(sorted({s for v in SKIES.values() for s in v}))})"
)


def scene_of(caption: str) -> Scene:
    """Read a scene back from its caption."""
    match = CAPTION.fullmatch(caption.strip())
    if match is None:
        raise ValueError(f"not a caption of the demonstration: {caption!r}")
    return Scene(*match.groups())


def random_scene(rng: random.Random) -> Scene:
    """Draw every property of a scene alike, the sky from those of its time of day."""
    time = rng.choice(TIMES)
    return Scene(
        colour=rng.choice(ANIMAL_COLOURS),
        animal=rng.choice(ANIMALS),
        pose=rng.choice(POSES),
        side=rng.choice(SIDES),
        thing_colour=rng.choice(THING_COLOURS),
        thing=rng.choice(THINGS),
        place=rng.choice(PLACES),
        time=time,
        sky=rng.choice(SKIES[time]),
    )
