"""The story model: a small transformer over the words of stories, and how a story is decoded.

Decoding is constrained. The hero is one token, whose name is put in at the end, so it cannot change. Words of
other animals are out. After each sentence comes a caption, slot by slot: its hero is the story's, its thing
is one that the sentence names, its time is not before that of the picture before it, and its sky fits the
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from trimtab_film.scenes import (
    ANIMALS,
    PLACES,
    POSES,
    SIDES,
    SKIES,
    THING_COLOURS,
    THINGS,
    TIMES,
    Scene,
)
from trimtab_film.story_text import END, NAME, PICTURE, ROLES, STORY

LONGEST_TOKENS = 224
LONGEST_SENTENCE_TOKENS = 36


@dataclass(frozen=True)
class StorySize:
    """Widths of the story model."""

    words: int
    width: int = 112
    blocks: int = 4
    heads: int = 4


class StoryBlock(nn.Module):
    """Attention to what came before, then a feed-forward net."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.rise = nn.Linear(width, 4 * width)
        self.fall = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Update the tokens; returns keys and values for the next ones too."""
        q, k, v = self.qkv(self.before_attention(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.fall(F.gelu(self.rise(self.before_net(x)))), (k, v)


Past = list[tuple[Tensor, Tensor]]


class StoryTransformer(nn.Module):
    """Logits of the next word."""

    def __init__(self, size: StorySize) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(LONGEST_TOKENS, size.width))
        self.blocks = nn.ModuleList(StoryBlock(size.width, size.heads) for _ in range(size.blocks))
        self.last = nn.LayerNorm(size.width)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, tokens: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """Return logits (batch, tokens, words), and keys and values of all tokens so far."""
        start = 0 if past is None else past[0][0].shape[2]
        x = self.words(tokens) + self.places[start : start + tokens.shape[1]]
        kept: Past = []
        for k, block in enumerate(self.blocks):
            x, pair = block(x, None if past is None else past[k])
            kept.append(pair)
        return self.last(x) @ self.words.weight.T, kept


class Writer:
    """Decodes stories under the constraints."""

    def __init__(self, model: nn.Module, words: Sequence[str]) -> None:
        self.model, self.words = model, tuple(words)
        self.numbers = {word: k for k, word in enumerate(self.words)}
        self.in_sentences = torch.ones(len(self.words), dtype=torch.bool)
        for mark in (STORY, PICTURE, END, *ANIMALS):
            self.in_sentences[self.numbers[mark]] = False

    @torch.inference_mode()
    def write(
        self, asked: Sequence[str], seed: int, sentences: int = 5, temperature: float = 0.7
    ) -> list[tuple[list[str], Scene]]:
        """Write sentences with their scenes. `asked` begins with the hero's colour and animal."""
        pen = _Pen(self, asked, torch.Generator().manual_seed(seed), temperature)
        story: list[tuple[list[str], Scene]] = []
        wishes = wishes_of(asked[2:], sentences)
        while len(story) < sentences:
            sentence = pen.sentence(wishes[len(story) :])
            story.append((sentence, pen.scene(sentence, story[-1][1] if story else None)))
        return story


@dataclass(frozen=True)
class Wish:
    """The plot of a sentence; "" leaves it to the model."""

    colour: str = ""
    thing: str = ""
    place: str = ""


def wishes_of(asked: Sequence[str], sentences: int) -> list[Wish]:
    """Give each thing that is asked for a sentence, with its colour and the place named after it."""
    wishes: list[Wish] = []
    colour = ""
    for word in asked:
        if word in THINGS:
            wishes.append(Wish(colour, word))
        elif word in PLACES and wishes:
            wishes[-1] = replace(wishes[-1], place=wishes[-1].place or word)
        elif word in PLACES:
            wishes.append(Wish(place=word))
        colour = word if word in THING_COLOURS else ""
    return (wishes + [Wish()] * sentences)[:sentences]


class _Pen:
    """One story while it is written."""

    def __init__(
        self, writer: Writer, asked: Sequence[str], generator: torch.Generator, temperature: float
    ) -> None:
        self.writer, self.generator, self.temperature = writer, generator, temperature
        self.colour, self.animal = asked[0], asked[1]
        self.allowed = writer.in_sentences.clone()
        self.allowed[writer.numbers[self.animal]] = True
        self.past: Past | None = None
        self.logits = self._read([*asked, STORY])

    def _read(self, words: Sequence[str]) -> Tensor:
        tokens = torch.tensor([[self.writer.numbers[word] for word in words]])
        for token in tokens.split(1 if self.past is not None else len(words), 1):
            logits, self.past = self.writer.model(token, self.past)
        return logits[0, -1].float()

    def _next(self, allowed: Tensor) -> str:
        chances = torch.softmax(self.logits.masked_fill(~allowed, -torch.inf) / self.temperature, 0)
        word = self.writer.words[int(torch.multinomial(chances, 1, generator=self.generator))]
        self.logits = self._read([word])
        return word

    def _one_of(self, words: Sequence[str]) -> str:
        allowed = torch.zeros(len(self.writer.words), dtype=torch.bool)
        allowed[[self.writer.numbers[word] for word in words]] = True
        return self._next(allowed)

    def sentence(self, wishes: Sequence[Wish]) -> list[str]:
        """Write a sentence that tells the first wish; things of later ones must wait."""
        allowed_now = self.allowed.clone()
        allowed_now[[self.writer.numbers[wish.thing] for wish in wishes[1:] if wish.thing]] = False
        words: list[str] = []
        while not words or words[-1] not in (".", "!", "?"):
            if len(words) == LONGEST_SENTENCE_TOKENS:
                words.append(self._one_of(["."]))
                break
            words.append(self._next(self._wished(words, wishes[0], allowed_now & self.allowed)))
            self._settle(words[-1])
        self._forbid(word for word in words if word in THINGS)
        return words

    def _wished(self, words: Sequence[str], wish: Wish, allowed: Tensor) -> Tensor:
        """Leave only the wished word where the model is about to write one of its kind."""
        chances = torch.softmax(self.logits.masked_fill(~allowed, -torch.inf), 0)
        told = any(word in THINGS for word in words)
        tells_hero = list(words[-2:]) == [NAME, "the"] or words[-1:] not in (["a"], ["an"], ["the"])
        for word, kind, is_out in (
            (wish.colour, THING_COLOURS, tells_hero or told),
            (wish.thing, THINGS, told),
            (wish.place, PLACES, False),
        ):
            numbers = [self.writer.numbers[other] for other in kind]
            if word and not is_out and chances[numbers].sum() > 0.5:
                only = torch.zeros_like(allowed)
                only[self.writer.numbers[word]] = True
                return only
        return allowed

    def _settle(self, word: str) -> None:
        """Keep to a friend, an object or a gift once the story has one."""
        for role in ROLES:
            if word in role:
                self._forbid(other for other in role if other != word)

    def _forbid(self, words: Iterable[str]) -> None:
        for word in words:
            self.allowed[self.writer.numbers[word]] = False

    def scene(self, sentence: Sequence[str], before: Scene | None) -> Scene:
        """Write the caption of the sentence's picture."""
        self._one_of([PICTURE])
        self._one_of([self.colour])
        self._one_of([self.animal])
        pose = self._one_of(POSES)
        side = self._one_of(SIDES if before is None else [s for s in SIDES if s != before.side])
        thing_colour, thing = self._thing(sentence)
        place = self._one_of([p for p in PLACES if p in sentence] or PLACES)
        time = self._one_of(TIMES if before is None else TIMES[TIMES.index(before.time) :])
        sky = self._one_of(SKIES[time])
        return Scene(self.colour, self.animal, pose, side, thing_colour, thing, place, time, sky)

    def _thing(self, sentence: Sequence[str]) -> tuple[str, str]:
        named = [k for k, word in enumerate(sentence) if word in THINGS]
        if not named:
            return self._one_of(THING_COLOURS), self._one_of(THINGS)
        at = named[-1]
        colours = [sentence[at - 1]] if at and sentence[at - 1] in THING_COLOURS else list(THING_COLOURS)
        return self._one_of(colours), self._one_of([sentence[at]])
