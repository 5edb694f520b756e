"""Captions as numbers: the words that the picture model knows."""

from __future__ import annotations

from trimtab_film.scenes import (
    ANIMAL_COLOURS,
    ANIMALS,
    PLACES,
    POSES,
    SKIES,
    THING_COLOURS,
    THINGS,
    TIMES,
    Scene,
)

SKY_WORDS = tuple(dict.fromkeys(sky for skies in SKIES.values() for sky in skies))
SLOTS = (ANIMAL_COLOURS, ANIMALS, POSES, THING_COLOURS, THINGS, PLACES, TIMES, SKY_WORDS)
CAPTION_WORDS = len(SLOTS)
WORDS = tuple(dict.fromkeys(word for slot in SLOTS for word in slot))
_NUMBERS = {word: k + 1 for k, word in enumerate(WORDS)}  # 0 stands for no caption


def word_numbers(scene: Scene) -> list[int]:
    """Return the numbers of a scene's words. The side is not among them: the right is the mirrored left."""
    words = (
        scene.colour,
        scene.animal,
        scene.pose,
        scene.thing_colour,
        scene.thing,
        scene.place,
        scene.time,
        scene.sky,
    )
    return [_NUMBERS[word] for word in words]
