"""Stories: what the grammar writes, what the decoder lets through, and what the shipped model says."""

from __future__ import annotations

import random
import re

import pytest
from trimtab_film.film_prompts import NAMES, read_prompt
from trimtab_film.scenes import (
    ANIMAL_COLOURS,
    ANIMALS,
    PLACES,
    SKIES,
    THING_COLOURS,
    THINGS,
    TIMES,
    Scene,
    random_scene,
    scene_of,
)
from trimtab_film.story_text import NAME, PLACE_PHRASES, sentence_text
from trimtab_film.train.story_grammar import (
    Draft,
    story_tokens,
    vocabulary,
    write_story,
)

SEEDS = range(40)
PROMPTS = (
    "a blue cat, a yellow boat and a red castle in the snow",
    "an owl called Hugo",
    "tell me something",
)


def assert_agrees(sentence: str, scene: Scene) -> None:
    """Check that the picture shows what the sentence says."""
    assert f"{scene.thing_colour} {scene.thing}" in sentence
    assert PLACE_PHRASES[scene.place] in sentence
    assert scene.sky in SKIES[scene.time]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_grammar_tells_one_story_of_one_hero(seed: int) -> None:
    drafts = write_story(random.Random(seed))
    scenes = [draft.scene for draft in drafts]
    assert len(drafts) == 5
    assert len({(s.animal, s.colour) for s in scenes}) == 1
    assert len({s.thing for s in scenes}) == 5
    assert [s.side for s in scenes[1:]] == [{"left": "right", "right": "left"}[s.side] for s in scenes[:-1]]
    times = [TIMES.index(s.time) for s in scenes]
    assert times == sorted(times)
    assert scenes[-1].time == "night"
    assert scenes[-1].pose == "sleeping"
    for draft in drafts:
        assert_agrees(draft.sentence, draft.scene)
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", draft.sentence)
        assert "[" not in draft.sentence


def test_the_vocabulary_has_every_word_of_the_grammar() -> None:
    words = set(vocabulary())
    rng = random.Random(99)
    for _ in range(500):
        assert set(story_tokens(write_story(rng), rng)) <= words


def test_captions_are_read_back() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scene = random_scene(rng)
        assert scene_of(scene.caption()) == scene


@pytest.mark.parametrize("caption", ["", "a fox", "green fox sitting left , red house , meadow day sun"])
def test_what_is_no_caption_is_refused(caption: str) -> None:
    with pytest.raises(ValueError, match="not a caption"):
        scene_of(caption)


def test_sentences_are_written_as_people_do() -> None:
    tokens = f"and {NAME} said : i saw your hat !".split()
    assert sentence_text(tokens, "Pip") == "And Pip said: I saw your hat!"
    assert sentence_text(["so", "he", "slept", "."], "Pip") == "So he slept."


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("A grey bunny near a red castle by the sea", ("grey", "rabbit", "red", "castle", "beach")),
        ("an orange fox", ("orange", "fox")),
        ("the white owl, a boat, a green mushroom", ("white", "owl", "boat", "green", "mushroom")),
    ],
)
def test_a_prompt_asks_for_what_it_names(prompt: str, asked: tuple[str, ...]) -> None:
    assert read_prompt(prompt).asked == asked


def test_what_a_prompt_leaves_open_follows_from_its_words_and_the_seed() -> None:
    open_prompt = "tell me something nice"
    assert read_prompt(open_prompt) == read_prompt("Tell me: something nice!")
    requests = [read_prompt(open_prompt, seed) for seed in range(30)]
    assert {r.asked[1] for r in requests} == set(ANIMALS)
    assert {r.asked[0] for r in requests} <= set(ANIMAL_COLOURS)
    assert {r.name for r in requests} <= set(NAMES)
    assert read_prompt("a cat named tomas").name == "Tomas"


@pytest.fixture(scope="module")
def write() -> object:
    pytest.importorskip("torch", reason="needs the extra models")
    from trimtab_film.film_stages import Story

    return Story()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_model_keeps_hero_name_and_time(write: object, prompt: str, seed: int) -> None:
    request = read_prompt(prompt, seed)
    panels = write(prompt, seed)  # type: ignore[operator]
    scenes = [scene_of(panel["caption"]) for panel in panels]
    text = " ".join(panel["sentence"] for panel in panels)
    assert len(panels) == 5
    assert {(s.colour, s.animal) for s in scenes} == {request.asked[:2]}
    assert request.name in text
    assert not {name for name in NAMES if name != request.name} & set(re.findall(r"\w+", text))
    assert not {a for a in ANIMALS if a != request.asked[1]} & set(re.findall(r"\w+", text))
    times = [TIMES.index(s.time) for s in scenes]
    assert times == sorted(times)
    for panel, scene in zip(panels, scenes, strict=True):
        assert scene.thing in panel["sentence"]
        assert scene.sky in SKIES[scene.time]
        assert len(panel["sentence"].split()) < 36


def test_the_model_writes_stories_of_the_grammar(write: object) -> None:
    """Of the model's sentences at least nine in ten are ones that the grammar can write, word for word."""
    rng = random.Random(5)
    known = {_shape(draft) for _ in range(6000) for draft in write_story(rng)}
    panels = [panel for seed in range(6) for panel in write("a story", seed)]  # type: ignore[operator]
    good = [_shape_of(panel["sentence"]) in known for panel in panels]
    assert sum(good) / len(good) >= 0.9


def test_equal_prompts_and_seeds_give_equal_stories(write: object) -> None:
    first, again, other = (write("a red bear", seed) for seed in (1, 1, 2))  # type: ignore[operator]
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", range(4))
def test_the_model_tells_what_was_asked_for(write: object, seed: int) -> None:
    prompt = "a white cat, a purple lighthouse in the snow, a tree and an orange boat by the lake"
    panels = write(prompt, seed)  # type: ignore[operator]
    scenes = [scene_of(panel["caption"]) for panel in panels]
    assert [scene.thing for scene in scenes[:3]] == ["lighthouse", "tree", "boat"]
    assert (scenes[0].thing_colour, scenes[0].place) == ("purple", "snow")
    assert (scenes[2].thing_colour, scenes[2].place) == ("orange", "lake")
    assert "purple lighthouse in the snow" in panels[0]["sentence"]
    assert "orange boat by the lake" in panels[2]["sentence"]
    assert len({scene.thing for scene in scenes}) == 5


def test_wishes_go_to_sentences_in_order() -> None:
    pytest.importorskip("torch", reason="needs the extra models")
    from trimtab_film.story_model import Wish, wishes_of

    asked = ["red", "castle", "beach", "tree", "snow", "lake"]
    assert wishes_of(asked, 3) == [Wish("red", "castle", "beach"), Wish("", "tree", "snow"), Wish()]
    assert wishes_of(["forest", "boat"], 2) == [Wish(place="forest"), Wish(thing="boat")]


def _shape(draft: Draft) -> str:
    return _shape_of(sentence_text(draft.sentence.split(), "Pip"))


def _shape_of(sentence: str) -> str:
    """Replace what varies freely."""
    for names, mark in (
        (NAMES, "N"),
        (THING_COLOURS + ANIMAL_COLOURS, "C"),
        (THINGS, "T"),
        (ANIMALS, "A"),
        (PLACES, "P"),
    ):
        sentence = re.sub(rf"\b({'|'.join(names)})\b", mark, sentence, flags=re.IGNORECASE)
    return re.sub(r"\b(in|on|by) the P\b", "at P", re.sub(r"\b[Aa]n?\b", "a", sentence))
