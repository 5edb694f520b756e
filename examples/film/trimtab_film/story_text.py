"""Stories as tokens: words, and marks for what is not a word."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trimtab_film.scenes import Scene

STORY, PICTURE, END, NAME = "<story>", "<picture>", "<end>", "<name>"
PLACE_PHRASES = {
    "meadow": "in the meadow",
    "snow": "in the snow",
    "beach": "on the beach",
    "forest": "in the forest",
    "lake": "by the lake",
}
OBJECTS = ("kite", "lantern", "key", "drum", "book", "hat", "bell", "shell", "map", "scarf")
FRIENDS = ("mouse", "turtle", "hedgehog", "frog", "duck", "squirrel")
GIFTS = ("cake", "letter", "song", "basket", "pot", "flower")
ROLES = (
    OBJECTS,
    FRIENDS,
    GIFTS,
)  # a story has at most one of each


def caption_tokens(scene: Scene) -> list[str]:
    """Return the words of a caption, commas left out."""
    return [word for word in scene.caption().split() if word != ","]


def with_articles(tokens: Sequence[str]) -> list[str]:
    """Put `a` before consonants and `an` before vowels."""
    following = [*tokens[1:], "."]
    articles = ("an" if word[0] in "aeiou" else "a" for word in following)
    return [art if token in ("a", "an") else token for token, art in zip(tokens, articles, strict=True)]


def sentence_text(tokens: Sequence[str], name: str) -> str:
    """Write a sentence as people do: name, capitals, punctuation; articles and places agree."""
    text = " ".join(name if token == NAME else token for token in with_articles(tokens))
    places = "|".join(PLACE_PHRASES)
    text = re.sub(rf"\b(?:in|on|by) the ({places})\b", lambda found: PLACE_PHRASES[found[1]], text)
    text = re.sub(r" ([,.:!?])", r"\1", text)
    text = re.sub(r"\bi\b", "I", text)
    said = text.find(": ") + 2
    if said > 1:
        text = text[:said] + text[said].upper() + text[said + 1 :]
    return text[0].upper() + text[1:]
