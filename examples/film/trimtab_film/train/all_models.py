"""Trains all models of the demonstration, in two processes, and writes their weights."""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from trimtab_film import weights_folder
from trimtab_film.painting import PictureModel
from trimtab_film.picture_model import Decoder, Sketch
from trimtab_film.story_model import StorySize, StoryTransformer
from trimtab_film.train.picture_training import (
    DRAWN_PX,
    ScenePool,
    encoded_drawings,
    fit_encoder,
    sketched_drawings,
    train_decoder,
    train_sketch,
    train_transformer,
    transformer_size,
)
from trimtab_film.train.story_grammar import vocabulary
from trimtab_film.train.story_training import train_story_model
from trimtab_film.weights import save_weights


@dataclass(frozen=True)
class Budget:
    """Processor seconds for each part."""

    story_cpu_s: float = 330
    sketch_cpu_s: float = 120
    transformer_cpu_s: float = 300
    decoder_cpu_s: float = 200
    tuning_cpu_s: float = 200

    def times(self, factor: float) -> Budget:
        """Stretch or shorten all parts alike."""
        return Budget(*(getattr(self, field.name) * factor for field in fields(self)))


def main() -> None:
    """Train in two processes: the decoder's first part and the stories, and what makes codes of captions."""
    parser = argparse.ArgumentParser(prog="python -m trimtab_film.train", description=__doc__)
    parser.add_argument(
        "--work", type=Path, default=Path("trimtab-out/models"), help="states; it resumes from them"
    )
    parser.add_argument("--out", type=Path, default=weights_folder(), help="folder of the weights")
    parser.add_argument("--budget", type=float, default=1.0, help="factor of the time")
    given = parser.parse_args()
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    budget = Budget().times(given.budget)
    fit_encoder(given.work / "encoder.pt")
    other = multiprocessing.get_context("spawn").Process(
        target=train_decoder_and_stories, args=(given.work, budget)
    )
    other.start()
    train_codes(given.work, budget)
    other.join()
    if other.exitcode:
        raise SystemExit(other.exitcode)
    tune_decoder(given.work, budget)
    for path in collect(given.work, given.out):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def train_decoder_and_stories(work: Path, budget: Budget) -> None:
    """Train the decoder on drawings' own codes, and the story model."""
    _settle()
    drawings = encoded_drawings(fit_encoder(work / "encoder.pt"), 1200, DRAWN_PX)
    train_decoder(work / "decoder-first.pt", [drawings], budget.decoder_cpu_s)
    train_story_model(work / "story.pt", budget.story_cpu_s)


def train_codes(work: Path, budget: Budget) -> None:
    """Train sketch and transformer."""
    _settle()
    pool = ScenePool(fit_encoder(work / "encoder.pt"), start=1000, most=8000)
    sketch = train_sketch(work / "sketch.pt", pool, budget.sketch_cpu_s)
    train_transformer(work / "transformer.pt", sketch, pool, budget.transformer_cpu_s)


def tune_decoder(work: Path, budget: Budget) -> None:
    """Train the decoder further, on sketches too."""
    _settle()
    sketch, decoder = Sketch(transformer_size()), Decoder()
    sketch.load_state_dict(_state(work / "sketch.pt"))
    decoder.load_state_dict(_state(work / "decoder-first.pt"))
    encoder = fit_encoder(work / "encoder.pt")
    parts = [encoded_drawings(encoder, 1200, DRAWN_PX), sketched_drawings(sketch, 1200, DRAWN_PX)]
    train_decoder(work / "decoder.pt", parts, budget.tuning_cpu_s, start=decoder)


def _settle() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def collect(work: Path, out: Path) -> list[Path]:
    """Write the weights of the trained parts."""
    size = transformer_size()
    pictures = PictureModel(size)
    for part, name in ((pictures.sketch, "sketch"), (pictures.decoder, "decoder")):
        part.load_state_dict(_state(work / f"{name}.pt"))
    mean = {
        name: value for name, value in _state(work / "transformer.pt").items() if name.startswith("mean.")
    }
    pictures.transformer.load_state_dict({name.removeprefix("mean."): value for name, value in mean.items()})
    story = _story(work / "story.pt")
    paths = [out / "pictures.safetensors", out / "story.safetensors"]
    save_weights(paths[0], pictures, pictures.header())
    save_weights(paths[1], story, {"size": asdict(story.size), "words": vocabulary()})
    return paths


def _story(path: Path) -> StoryTransformer:
    story = StoryTransformer(StorySize(len(vocabulary())))
    story.load_state_dict(_state(path))
    return story


def _state(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=True)["model"])
