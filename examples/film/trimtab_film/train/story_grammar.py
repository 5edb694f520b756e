"""Writes the stories that the story model learns from.

A story has five sentences, each with the caption of its picture. Hero and time of day are the same in both,
and what the hero looks for in the first sentence is found in the fourth.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab_film.scenes import ANIMAL_COLOURS, ANIMALS, PLACES, SKIES, THING_COLOURS, THINGS, Scene
from trimtab_film.story_text import (
    END,
    FRIENDS,
    GIFTS,
    NAME,
    OBJECTS,
    PICTURE,
    PLACE_PHRASES,
    STORY,
    caption_tokens,
    with_articles,
)

SKY_PHRASES = {
    ("morning", "sun"): ("in the morning sun", "on a golden morning"),
    ("morning", "clouds"): ("under soft morning clouds", "on a cloudy morning"),
    ("morning", "rainbow"): ("under a morning rainbow",),
    ("day", "sun"): ("in the warm sun", "on a sunny day"),
    ("day", "clouds"): ("under white clouds", "while clouds sailed by"),
    ("day", "rainbow"): ("under a bright rainbow", "after the rain"),
    ("sunset", "sun"): ("as the sun went down", "in the red evening sun"),
    ("sunset", "clouds"): ("under pink evening clouds", "while the clouds turned pink"),
    ("night", "moon"): ("under a round moon", "in the silver moonlight"),
    ("night", "stars"): ("under a thousand stars", "while a star fell from the sky"),
}
MOODS = ("brave", "gentle", "curious", "cheerful", "little", "kind")
GIFT_PHRASES = {"basket": "basket of berries", "pot": "pot of honey"}

# Sentences of each plot's five beats. [name]: the hero's; [thing]: the picture's; [where]: place and sky.
PLOTS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        (
            "once there was a [mood] [hero] called [name] , who loved a small [object] "
            "and lived near a [thing] [where] .",
        ),
        (
            "one day the [object] was gone , and [name] looked for it behind a [thing] [where] .",
            "but the [object] was lost , so [name] asked at the [thing] [where] .",
        ),
        (
            "a [friend] waved from a [thing] [where] and said : i saw your [object] !",
            "[name] met a [friend] at a [thing] [where] , and they searched together .",
        ),
        (
            "and there it was : the [object] lay beside a [thing] [where] !",
            "at last [name] found the [object] under a [thing] [where] .",
        ),
        (
            "that night [name] slept by the [thing] [where] , and held the [object] tight .",
            "[name] fell asleep beside a [thing] [where] , happy to have the [object] back .",
        ),
    ),
    (
        (
            "a [mood] [hero] called [name] lived near a [thing] [where] and dreamed of seeing the world .",
            "once there was a [mood] [hero] called [name] , who watched a [thing] [where] "
            "and wished to travel .",
        ),
        (
            "so [name] packed a [object] and came to a [thing] [where] .",
            "[name] took a [object] and walked to a [thing] [where] .",
        ),
        (
            "the next stop was a [thing] [where] , where a [friend] shared some lunch .",
            "at a [thing] [where] , a [friend] showed [name] the way .",
        ),
        (
            "[name] waved goodbye to the [friend] near a [thing] [where] .",
            "[name] reached a [thing] [where] and waved with joy .",
        ),
        (
            "tired and happy , [name] slept beside a [thing] [where] .",
            "then [name] lay down near a [thing] [where] and dreamed of tomorrow .",
        ),
    ),
    (
        (
            "[name] the [hero] baked all morning near a [thing] [where] , "
            "for it was the birthday of a [friend] .",
            "a [mood] [hero] called [name] sat by a [thing] [where] and made a [gift] for a [friend] .",
        ),
        (
            "with the [gift] in a bag , [name] set out past a [thing] [where] .",
            "[name] carried the [gift] past a [thing] [where] .",
        ),
        (
            "the road was long , so [name] rested at a [thing] [where] .",
            "[name] took a rest beside a [thing] [where] and hummed a tune .",
        ),
        (
            "the [friend] stood by a [thing] [where] , and [name] waved : happy birthday !",
            "at a [thing] [where] , [name] waved and gave the [gift] to the [friend] .",
        ),
        (
            "they danced until late , and [name] fell asleep by a [thing] [where] .",
            "after the party , [name] slept near a [thing] [where] .",
        ),
    ),
    (
        (
            "far away , near a [thing] [where] , lived a [mood] [hero] called [name] who could not sing .",
            "a [mood] [hero] called [name] sat alone by a [thing] [where] and wanted to learn a song .",
        ),
        (
            "[name] listened to the wind at a [thing] [where] .",
            "first [name] asked a [friend] who lived by a [thing] [where] .",
        ),
        (
            "[name] tried and tried beside a [thing] [where] , and a [friend] clapped .",
            "the [friend] took [name] to a [thing] [where] , where every bird was singing .",
        ),
        (
            "and then , near a [thing] [where] , [name] waved and sang at last !",
            "[name] sang so well by a [thing] [where] that everyone came to listen .",
        ),
        (
            "the song went on until [name] slept beside a [thing] [where] .",
            "that night [name] slept by a [thing] [where] and sang in a dream .",
        ),
    ),
)
DAYS = (
    ("morning", "day", "day", "sunset", "night"),
    ("day", "day", "sunset", "sunset", "night"),
    ("morning", "morning", "day", "sunset", "night"),
)


@dataclass(frozen=True)
class Draft:
    """A sentence, with the scene of its picture."""

    sentence: str
    scene: Scene


def write_story(rng: random.Random) -> list[Draft]:
    """Write a random story."""
    plot, times = rng.choice(PLOTS), rng.choice(DAYS)
    colour, animal = rng.choice(ANIMAL_COLOURS), rng.choice(ANIMALS)
    gift = rng.choice(GIFTS)
    fixed = {
        "hero": f"{colour} {animal}",
        "name": NAME,
        "mood": rng.choice(MOODS),
        "object": rng.choice(OBJECTS),
        "friend": rng.choice(FRIENDS),
        "gift": GIFT_PHRASES.get(gift, gift),
    }
    side = rng.choice(("left", "right"))
    drafts: list[Draft] = []
    for time, thing in zip(times, rng.sample(THINGS, 5), strict=True):
        template = rng.choice(plot[len(drafts)])
        scene = Scene(
            colour,
            animal,
            _pose(template),
            side,
            rng.choice(THING_COLOURS),
            thing,
            rng.choice(PLACES),
            time,
            rng.choice(SKIES[time]),
        )
        drafts.append(Draft(_fill(template, fixed, scene, rng), scene))
        side = "right" if side == "left" else "left"
    return drafts


def _pose(template: str) -> str:
    for pose, stems in (("sleeping", ("slept", "asleep", "lay down")), ("waving", ("[name] waved",))):
        if any(stem in template for stem in stems):
            return pose
    return "sitting"


def _fill(template: str, fixed: Mapping[str, str], scene: Scene, rng: random.Random) -> str:
    sky = rng.choice(SKY_PHRASES[scene.time, scene.sky])
    words = {
        **fixed,
        "thing": f"{scene.thing_colour} {scene.thing}",
        "where": f"{PLACE_PHRASES[scene.place]} {sky}",
    }
    for slot, value in words.items():
        template = template.replace(f"[{slot}]", value)
    return " ".join(with_articles(template.split()))


def story_tokens(drafts: list[Draft], rng: random.Random) -> list[str]:
    """Join what a prompt may have asked for, the sentences and the captions."""
    hero = drafts[0].scene
    asked = [hero.colour, hero.animal]
    for draft in drafts:
        if rng.random() < 0.3:
            asked += (
                [draft.scene.thing_colour, draft.scene.thing] if rng.random() < 0.5 else [draft.scene.thing]
            )
        if rng.random() < 0.15:
            asked.append(draft.scene.place)
    tokens = [*asked, STORY]
    for draft in drafts:
        tokens += [*draft.sentence.split(), PICTURE, *caption_tokens(draft.scene)]
    return [*tokens, END]


def vocabulary(stories: int = 4000, seed: int = 11) -> list[str]:
    """Collect every word of the grammar: enough stories have them all."""
    rng = random.Random(seed)
    words = {word for _ in range(stories) for word in story_tokens(write_story(rng), rng)}
    return sorted(words)
