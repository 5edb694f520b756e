"""Pictures: drawings as the measure, and the shipped model's pictures measured against captions."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="needs the extra models")

from trimtab_film.drawing.draw import draw_scene  # noqa: E402
from trimtab_film.scenes import ANIMAL_COLOURS, ANIMALS, TIMES, Scene, random_scene  # noqa: E402

SCENE = Scene("orange", "fox", "sitting", "left", "blue", "house", "meadow", "day", "sun")
HERO_BOX = (0.20, 0.62, 0.42, 0.86)  # left, top, right, lower part of the side: the hero's body on the left


def drawn(scene: Scene, size_px: int = 128) -> np.ndarray:
    return np.asarray(draw_scene(scene, random.Random(0), size_px), dtype=np.float64)


def part(picture: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    side = len(picture)
    left, top, right, bottom = (round(side * edge) for edge in box)
    return picture[top:bottom, left:right].reshape(-1, 3)


def test_the_right_side_is_the_mirrored_left() -> None:
    left, right = drawn(SCENE), drawn(replace(SCENE, side="right"))
    assert np.array_equal(left, right[:, ::-1])


def test_every_word_of_a_caption_changes_the_drawing() -> None:
    base = drawn(SCENE)
    for change in (
        {"colour": "grey"},
        {"animal": "owl"},
        {"pose": "sleeping"},
        {"thing_colour": "red"},
        {"thing": "tree"},
        {"place": "beach"},
        {"time": "night", "sky": "moon"},
        {"sky": "rainbow"},
    ):
        assert np.abs(drawn(replace(SCENE, **change)) - base).mean() > 0.3, change


def test_a_drawing_has_sky_above_and_land_below() -> None:
    picture = drawn(replace(SCENE, sky="clouds"))
    sky, land = part(picture, (0.0, 0.25, 0.1, 0.4)).mean(0), part(picture, (0.45, 0.92, 0.55, 1.0)).mean(0)
    assert sky[2] > sky[0] + 40  # blue
    assert land[1] > land[0] + 30  # green
    assert land[1] > land[2] + 30


@pytest.fixture(scope="module")
def painter() -> Any:
    pytest.importorskip("torch", reason="needs the extra models")
    from trimtab_film.film_stages import Painter

    return Painter(size_px=256)


def painted(painter: Any, scenes: list[Scene], seed: int = 0) -> list[np.ndarray]:
    files = painter.paint([scene.caption() for scene in scenes], seed)
    return [np.asarray(Image.open(io.BytesIO(file)), dtype=np.float64) for file in files]


def test_pictures_are_nearer_to_their_own_drawing_than_to_those_of_other_captions(painter: Any) -> None:
    rng = random.Random(21)
    scenes = [replace(random_scene(rng), side="left") for _ in range(16)]
    pictures = np.stack([p.ravel() for p in painted(painter, scenes)])
    drawings = np.stack([drawn(scene, 256).ravel() for scene in scenes])
    distance = np.abs(pictures[:, None] - drawings[None]).mean(2)
    assert (distance.argmin(1) == np.arange(len(scenes))).all()
    assert np.diag(distance).mean() < 16  # of 255; drawings of different captions differ by about 60


@pytest.mark.parametrize("animal", ANIMALS)
def test_the_hero_has_the_colour_of_the_caption(painter: Any, animal: str) -> None:
    """Of drawings in all colours of the hero, the picture is nearest to that of its caption."""
    scenes = [replace(SCENE, animal=animal, colour=colour) for colour in ANIMAL_COLOURS]
    pictures = [part(p, HERO_BOX).mean(0) for p in painted(painter, scenes)]
    drawings = np.stack([part(drawn(scene, 256), HERO_BOX).mean(0) for scene in scenes])
    found = [int(np.abs(drawings - picture).sum(1).argmin()) for picture in pictures]
    assert found == list(range(len(scenes)))


def test_nights_are_dark_and_days_are_bright(painter: Any) -> None:
    skies = {"morning": "sun", "day": "sun", "sunset": "sun", "night": "moon"}
    brightness = {
        t: p.mean()
        for t, p in zip(
            TIMES, painted(painter, [replace(SCENE, time=t, sky=skies[t]) for t in TIMES]), strict=True
        )
    }
    assert brightness["night"] < 0.7 * brightness["sunset"]
    assert brightness["sunset"] < brightness["day"]


def test_the_hero_stands_on_the_side_of_the_caption(painter: Any) -> None:
    left, right = painted(painter, [SCENE, replace(SCENE, side="right")])
    box = (1 - HERO_BOX[2], HERO_BOX[1], 1 - HERO_BOX[0], HERO_BOX[3])
    assert np.abs(part(left, HERO_BOX).mean(0) - part(right, box).mean(0)).max() < 25
    assert np.abs(part(left, HERO_BOX).mean(0) - part(left, box).mean(0)).max() > 40


def test_edges_are_sharp(painter: Any) -> None:
    """A picture's steepest steps are at least half as steep as those of the drawing at that size."""
    scene = replace(SCENE, time="night", sky="moon", place="snow")
    (picture,) = painted(painter, [scene])
    steps = [np.quantile(np.abs(np.diff(p.mean(2), axis=1)), 0.99) for p in (picture, drawn(scene, 256))]
    assert steps[0] > 0.5 * steps[1]


def test_a_picture_does_not_depend_on_its_batch_and_is_as_large_as_asked(painter: Any) -> None:
    scenes = [SCENE, replace(SCENE, animal="bear")]
    together, alone = painted(painter, scenes)[0], painted(painter, scenes[:1])[0]
    assert together.shape == (256, 256, 3)
    assert np.abs(together - alone).max() <= 2  # rounding


def test_painting_twice_gives_the_same_bytes(painter: Any) -> None:
    captions = [SCENE.caption()]
    assert painter.paint(captions, 3) == painter.paint(captions, 3)


@pytest.mark.parametrize(
    "options",
    [{"numbers": "half"}, {"numbers": "int8"}, {"runtime": "onnx"}, {"runtime": "onnx", "numbers": "int8"}],
    ids=str,
)
def test_options_change_how_it_runs_not_what_it_paints(painter: Any, options: dict[str, str]) -> None:
    if "onnx" in options.values():
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    from trimtab_film.film_stages import Painter

    scenes = [SCENE, replace(SCENE, animal="cat", time="night", sky="stars")]
    given = painted(Painter(size_px=256, device="cpu", **options), scenes)
    for one, other in zip(given, painted(painter, scenes), strict=True):
        assert np.abs(one - other).mean() < 5
