"""Trains the story model on stories of the grammar."""

from __future__ import annotations

import random
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from trimtab_film.story_model import StorySize, StoryTransformer
from trimtab_film.train.story_grammar import story_tokens, vocabulary, write_story
from trimtab_film.train.training_clock import Clock, load_state, save_state

IGNORED = -100


def train_story_model(path: Path, train_cpu_s: float, batch: int = 16) -> StoryTransformer:
    """Train for so long, counted in processor seconds; every story is a new one."""
    words = vocabulary()
    numbers = {word: k for k, word in enumerate(words)}
    model = StoryTransformer(StorySize(len(words)))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    clock = load_state(path, model, optimiser, train_cpu_s)
    rng = random.Random(clock.steps + 5)
    while not clock.done():
        error = _error(model, [_numbered(numbers, rng) for _ in range(batch)])
        _step(model, optimiser, error, clock)
        if clock.tick("story", error.item()):
            save_state(path, model, optimiser, clock)
    save_state(path, model, optimiser, clock)
    return model.eval()


def _numbered(numbers: dict[str, int], rng: random.Random) -> list[int]:
    return [numbers[word] for word in story_tokens(write_story(rng), rng)]


def _error(model: StoryTransformer, stories: list[list[int]]) -> Tensor:
    longest = max(map(len, stories))
    tokens = torch.tensor([story + [0] * (longest - len(story)) for story in stories])
    lengths = torch.tensor([len(story) for story in stories])[:, None]
    wanted = tokens[:, 1:].masked_fill(torch.arange(1, longest) >= lengths, IGNORED)
    logits, _ = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, error: Tensor, clock: Clock) -> None:
    for group in optimiser.param_groups:
        group["lr"] = 3e-3 * clock.decay(warm_steps=40)
    optimiser.zero_grad()
    error.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
