"""The story that a prompt asks for, in words that the story model knows."""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import dataclass

from trimtab_film.scenes import ANIMAL_COLOURS, ANIMALS, PLACES, THING_COLOURS, THINGS

NAMES = ("Rusty", "Luna", "Pip", "Milo", "Nora", "Finn", "Daisy", "Otto", "Ruby", "Hugo")
SYNONYMS = {
    "gray": "grey",
    "ginger": "orange",
    "bunny": "rabbit",
    "hare": "rabbit",
    "kitten": "cat",
    "cub": "bear",
    "ship": "boat",
    "home": "house",
    "cottage": "house",
    "sea": "beach",
    "seaside": "beach",
    "shore": "beach",
    "woods": "forest",
    "field": "meadow",
    "grass": "meadow",
    "snowy": "snow",
    "winter": "snow",
    "pond": "lake",
    "river": "lake",
    "palace": "castle",
}


@dataclass(frozen=True)
class Request:
    """A prompt as read: hero and further wishes, the hero's name, and the seed that its words give."""

    asked: tuple[str, ...]  # colour and animal of the hero, then things and places
    name: str
    seed: int


def read_prompt(prompt: str, seed: int = 0) -> Request:
    """Read a prompt. Its words and the seed choose what it leaves open: equal ones give equal stories."""
    words = [SYNONYMS.get(word, word) for word in re.findall(r"[a-z]+", prompt.lower())]
    mixed = zlib.crc32(f"{seed} {' '.join(words)}".encode())
    rng = random.Random(mixed)
    animal_at = next((k for k, word in enumerate(words) if word in ANIMALS), None)
    animal, colour = rng.choice(ANIMALS), rng.choice(ANIMAL_COLOURS)
    if animal_at is not None:
        animal = words[animal_at]
        colour = next((w for w in reversed(words[:animal_at]) if w in ANIMAL_COLOURS), colour)
    named = re.search(r"\b(?:named|called)\s+([A-Za-z]{2,16})", prompt)
    name = named[1].capitalize() if named else rng.choice(NAMES)
    return Request((colour, animal, *_wishes(words)), name, mixed)


def _wishes(words: list[str], most: int = 5) -> list[str]:
    """Find the things, with their colours, and the places that a prompt names."""
    wishes: list[str] = []
    count = 0
    for before, word in zip(["", *words], words, strict=False):
        if count == most or word not in THINGS + PLACES or word in wishes:
            continue
        if word in THINGS and before in THING_COLOURS:
            wishes.append(before)
        wishes.append(word)
        count += 1
    return wishes
