"""Trains the picture model on scenes that it draws itself."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from trimtab_film.captions import CAPTION_WORDS, WORDS, word_numbers
from trimtab_film.drawing.draw import draw_scene
from trimtab_film.picture_model import (
    CODE_DIM,
    CODES,
    Decoder,
    Encoder,
    PictureTransformer,
    Sketch,
    TransformerSize,
)
from trimtab_film.scenes import Scene, random_scene
from trimtab_film.train.muon import Muon
from trimtab_film.train.training_clock import load_state, save_state

SMALL_PX, DRAWN_PX = 128, 256  # what the encoder sees, and what the decoder is taught
CROP_CODES = 8  # crops of the autoencoder's training, in codes a side


class Still(random.Random):
    """Random choices, but no movement: everything stands in the middle of where it may be."""

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2


def draw_many(count: int, size_px: int, oversample: int, rng: random.Random) -> tuple[list[Scene], Tensor]:
    """Draw random scenes: what they show, and bytes (count, 3, size, size)."""
    scenes = [replace(random_scene(rng), side="left") for _ in range(count)]
    pictures = torch.empty(count, 3, size_px, size_px, dtype=torch.uint8)
    for k, scene in enumerate(scenes):
        drawn = np.asarray(draw_scene(scene, rng, size_px, oversample))
        pictures[k] = torch.from_numpy(drawn.copy()).permute(2, 0, 1)
    return scenes, pictures


def unit(pictures: Tensor) -> Tensor:
    """Bring bytes to the range from -1 to 1."""
    return pictures.float() / 127.5 - 1


def fit_encoder(path: Path, drawings: int = 400) -> Encoder:
    """Find the principal components of patches of drawings, or take those that `path` keeps."""
    encoder = Encoder()
    if path.exists():
        encoder.load_state_dict(torch.load(path, weights_only=True))
        return encoder
    encoder.fit(unit(draw_many(drawings, SMALL_PX, 4, random.Random(1))[1]))
    torch.save(encoder.state_dict(), path)
    return encoder


@dataclass
class Pairs:
    """Codes (count, 16, 16, 16) and the pictures that a decoder should make of them."""

    codes: Tensor
    pictures: Tensor

    def crops(self, count: int) -> tuple[Tensor, Tensor]:
        """Cut random squares out of both."""
        step, codes, pictures = self.pictures.shape[-1] // CODES, [], []
        for k in torch.randint(len(self.codes), (count,)).tolist():
            x, y = torch.randint(CODES - CROP_CODES + 1, (2,)).tolist()
            codes.append(self.codes[k, :, y : y + CROP_CODES, x : x + CROP_CODES])
            rows, columns = slice(step * y, step * (y + CROP_CODES)), slice(step * x, step * (x + CROP_CODES))
            pictures.append(self.pictures[k, :, rows, columns])
        return torch.stack(codes), unit(torch.stack(pictures))


def encoded_drawings(encoder: Encoder, count: int, size_px: int) -> Pairs:
    """Pair drawings with their own codes."""
    _, pictures = draw_many(count, size_px, 2, random.Random(2))
    small = [F.avg_pool2d(unit(part), size_px // SMALL_PX) for part in pictures.split(50)]
    return Pairs(torch.cat([encoder(part) for part in small]), pictures)


@torch.no_grad()
def sketched_drawings(sketch: Sketch, count: int, size_px: int) -> Pairs:
    """Pair still drawings with sketches: the decoder learns to sharpen what the models write."""
    scenes, pictures = draw_many(count, size_px, 2, Still(4))
    return Pairs(sketch(torch.tensor([word_numbers(scene) for scene in scenes])), pictures)


def train_decoder(
    path: Path, parts: Sequence[Pairs], train_cpu_s: float, start: Decoder | None = None, noise: float = 0.1
) -> Decoder:
    """Train for so many processor seconds, on all parts alike; `path` keeps the state and is resumed."""
    model = Decoder() if start is None else start
    height = 1.0 if start is None else 0.6
    optimiser = MixedOptimiser(model, [p for p in model.parameters() if p.ndim == 4 and p.shape[0] >= 24])
    clock = load_state(path, model, optimiser, train_cpu_s)
    model.to(memory_format=torch.channels_last)
    while not clock.done():
        _set_rate(optimiser, height * clock.decay(warm_steps=30))
        cut = [part.crops(12 // len(parts)) for part in parts]
        codes, target = torch.cat([c for c, _ in cut]), torch.cat([t for _, t in cut])
        drawn = model(codes + noise * torch.randn_like(codes), scale=target.shape[-1] / (8 * CROP_CODES))
        error = (drawn - target).abs().mean() + 2 * F.mse_loss(drawn, target)
        _step(optimiser, model, error)
        if clock.tick("decoder", error.item()):
            save_state(path, model, optimiser, clock)
    save_state(path, model, optimiser, clock)
    return model.eval()


class ScenePool:
    """Codes of drawn scenes and the word numbers of their captions. It grows while the transformer trains."""

    def __init__(self, encoder: Encoder, start: int, most: int, seed: int = 3) -> None:
        self.encoder, self.most, self.seed = encoder, most, seed
        self.codes = torch.empty(most, CODE_DIM, CODES, CODES)
        self.words = torch.empty(most, CAPTION_WORDS, dtype=torch.long)
        self.count = 0
        self.grow(start)

    def grow(self, count: int) -> None:
        """Draw further scenes, up to the most."""
        count = min(count, self.most - self.count)
        if count <= 0:
            return
        scenes, pictures = draw_many(count, SMALL_PX, 4, random.Random(self.seed * 1_000_000 + self.count))
        self.codes[self.count : self.count + count] = self.encoder(unit(pictures))
        self.words[self.count : self.count + count] = torch.tensor([word_numbers(s) for s in scenes])
        self.count += count

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Pick scenes at random."""
        picked = torch.randint(self.count, (count,))
        return self.codes[picked], self.words[picked]


def transformer_size() -> TransformerSize:
    """Give the size of sketch and transformer, for the words of captions."""
    return TransformerSize(words=len(WORDS) + 1, caption_words=CAPTION_WORDS)


def train_sketch(path: Path, pool: ScenePool, train_cpu_s: float, batch: int = 128) -> Sketch:
    """Train for so long, counted in processor seconds; `path` keeps the state and is resumed."""
    model = Sketch(transformer_size())
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.98), weight_decay=0)
    clock = load_state(path, model, optimiser, train_cpu_s)
    while not clock.done():
        _set_rate(optimiser, 2e-3 * clock.decay(warm_steps=20))
        codes, words = pool.sample(batch)
        error = F.mse_loss(model(words), codes)
        _step(optimiser, model, error)
        pool.grow(32)
        if clock.tick("sketch", error.item()):
            save_state(path, model, optimiser, clock)
    save_state(path, model, optimiser, clock)
    return model.eval()


def train_transformer(
    path: Path, sketch: Sketch, pool: ScenePool, train_cpu_s: float, batch: int = 32
) -> PictureTransformer:
    """Train for so long, counted in processor seconds; returns the running mean of the weights."""
    model = PictureTransformer(transformer_size())
    mean = copy.deepcopy(model).requires_grad_(False)
    both = nn.ModuleDict({"model": model, "mean": mean})
    optimiser = MixedOptimiser(
        model, [p for p in model.blocks.parameters() if p.ndim == 2 and min(p.shape) > 6]
    )
    clock = load_state(path, both, optimiser, train_cpu_s)
    while not clock.done():
        _set_rate(optimiser, clock.decay(warm_steps=40))
        codes, words = pool.sample(batch)
        error = _flow_error(model, sketch, codes, words)
        _step(optimiser, model, error)
        _follow(mean, model, clock.steps)
        if clock.tick("transformer", error.item()):
            save_state(path, both, optimiser, clock)
    save_state(path, both, optimiser, clock)
    return mean.eval()


@torch.no_grad()
def _follow(mean: nn.Module, model: nn.Module, steps: int) -> None:
    """Move the running mean of the weights towards the weights, slower as training goes on."""
    frac = max(0.003, 8 / (steps + 10))
    torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), min(1.0, frac))


def _flow_error(model: PictureTransformer, sketch: Sketch, codes: Tensor, words: Tensor) -> Tensor:
    """Mean squared error of the estimate at random times."""
    times = torch.rand(len(codes))
    t = times.view(-1, 1, 1, 1)
    with torch.no_grad():
        draft = sketch(words)
    return F.mse_loss(model(t * codes + (1 - t) * torch.randn_like(codes), draft, times, words), codes)


class MixedOptimiser:
    """Muon for some matrices, AdamW for the rest."""

    def __init__(self, model: nn.Module, matrices: list[nn.Parameter]) -> None:
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, lr=4e-3),
            torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.rates = (4e-3, 2e-3)

    def set_rate(self, frac: float) -> None:
        """Set both learning rates to a part of their highest."""
        for part, rate in zip(self.parts, self.rates, strict=True):
            _set_rate(part, rate * frac)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Update the weights."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> list[dict[str, object]]:
        """Give the states of both."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Take the states of both."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def _set_rate(optimiser: torch.optim.Optimizer | MixedOptimiser, rate: float) -> None:
    if isinstance(optimiser, MixedOptimiser):
        optimiser.set_rate(rate)
        return
    for group in optimiser.param_groups:
        group["lr"] = rate


def _step(optimiser: torch.optim.Optimizer | MixedOptimiser, model: nn.Module, error: Tensor) -> None:
    optimiser.zero_grad()
    error.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
