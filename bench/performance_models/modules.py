"""Small torch modules of many kinds, whose training steps are measured on one core."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

BATCHES = (4, 8, 16, 32)
TOKENS = 1000


class Given(nn.Module):
    """A module and the inputs of a sample."""

    def __init__(self, net: nn.Module, *shape: int, tokens: bool = False) -> None:
        super().__init__()
        self.net, self.shape, self.tokens = net, shape, tokens

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def example_inputs(self, batch: int) -> tuple[torch.Tensor, ...]:
        size = (batch, *self.shape)
        return (torch.randint(TOKENS, size) if self.tokens else torch.rand(size),)


def layers(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def convolved(a: int, b: int, stride: int = 1, groups: int = 1, size: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(b), nn.ReLU())


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(convolved(a, b, stride), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b))
        self.skip = nn.Identity() if a == b and stride == 1 else nn.Conv2d(a, b, 1, stride)

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.relu(self.net(x) + self.skip(x))


class UNet(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.down1, self.down2, self.mid = convolved(3, c), convolved(c, 2 * c, 2), convolved(2 * c, 4 * c, 2)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.join2, self.join1, self.out = convolved(4 * c, 2 * c), convolved(2 * c, c), nn.Conv2d(c, 2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        a = self.down1(x)
        b = self.down2(a)
        b = self.join2(torch.cat([b, self.up2(self.mid(b))], 1))
        return self.out(self.join1(torch.cat([a, self.up1(b)], 1)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> Any:
        n, t, w = x.shape
        parts = self.qkv(self.first(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.project(seen.transpose(1, 2).reshape(n, t, w))
        return x + self.feed(self.second(x))


class Language(nn.Module):
    """Tokens in, logits of the next ones out."""

    def __init__(self, width: int, depth: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS)
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.blocks(self.embed(x)))


class Vision(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(Block(width, 4, False) for _ in range(depth)))
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Recurrent(nn.Module):
    """A cell of products and gates, step by step."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> Any:
        parts = self.embed(x).unbind(1)
        for cell in self.cells:
            h = c = torch.zeros_like(parts[0])
            made = []
            for part in parts:
                h, c = cell(part, (h, c))
                made.append(h)
            parts = made
        return self.out(torch.stack(list(parts), 1))


class Mixer(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(48, width), nn.Linear(width, 10)
        self.tokens, self.channels = layers(patches, 128, patches), layers(width, 256, width)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.embed(x)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.out((x + self.channels(x)).mean(1))


def vgg() -> nn.Module:
    return nn.Sequential(
        convolved(3, 32), convolved(32, 32), nn.MaxPool2d(2), convolved(32, 64), convolved(64, 64),
        nn.MaxPool2d(2), nn.Flatten(), layers(64 * 64, 128, 10),
    )  # fmt: skip


def separable() -> nn.Module:
    parts = [convolved(3, 32, 2)]
    for a, b, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1)):
        parts += [convolved(a, a, stride, a), convolved(a, b, size=1)]
    return nn.Sequential(*parts, head(128))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 10),
    )  # fmt: skip


def residual(width: int) -> nn.Module:
    return nn.Sequential(
        convolved(3, width), Residual(width, width), Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2), head(4 * width),
    )  # fmt: skip


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 3, 2, 2), nn.Sigmoid(),
    )  # fmt: skip


MODULES: dict[str, Callable[[], Given]] = {
    "mlp": lambda: Given(layers(784, 512, 512, 10), 784),
    "wide-mlp": lambda: Given(layers(256, 2048, 2048, 256), 256),
    "lenet": lambda: Given(lenet(), 1, 28, 28),
    "vgg": lambda: Given(vgg(), 3, 32, 32),
    "resnet": lambda: Given(residual(16), 3, 32, 32),
    "wide-resnet": lambda: Given(residual(32), 3, 32, 32),
    "separable": lambda: Given(separable(), 3, 64, 64),
    "u-net": lambda: Given(UNet(16), 3, 32, 32),
    "autoencoder": lambda: Given(autoencoder(), 3, 64, 64),
    "transformer": lambda: Given(Language(128, 2, 4, False), 64, tokens=True),
    "small-gpt": lambda: Given(Language(192, 3, 6), 64, tokens=True),
    "vision-transformer": lambda: Given(Vision(96, 3), 3, 32, 32),
    "lstm": lambda: Given(Recurrent(128, 1), 32, tokens=True),
    "mixer": lambda: Given(Mixer(64, 128), 64, 48),
}
