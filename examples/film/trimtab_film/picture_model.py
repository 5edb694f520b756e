"""The picture model: codes of drawings, a decoder that makes pictures of codes, and a transformer that turns
noise into codes as a caption says.

A picture of 512 × 512 is 16 × 16 codes of 16 numbers, the principal components of its patches. The decoder
does not emit pixels: it emits six layers, each a smooth field of colours and a smooth field of strengths, at
128 × 128. Both are interpolated to the wanted size; a steep softmax over the strengths then says which layer
shows. So edges are sharp at any size, and a wrong code bends an edge instead of blurring it.

A sketch, the mean of a caption's codes, is the first estimate; the transformer corrects it on the way from
noise to codes. That way is a rectified flow (Liu et al. 2022, arXiv:2209.03003). Blocks are those of DiT
(Peebles and Xie 2023, arXiv:2212.09748) with one shared modulation and the words of the caption as tokens
beside the codes; both make it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CODES = 16  # a side of the field of codes
CODE_DIM = 16
PATCH_VALUES = 3 * 8 * 8
LAYERS = 6
DECODED_PX = 128  # at scale 1
PATCH = 2  # codes to a token, each way
TOKENS = (CODES // PATCH) ** 2
TOKEN_DIM = CODE_DIM * PATCH * PATCH


class Residual(nn.Module):
    """Two convolutions beside the identity. No normalisation: crops and whole pictures must give the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        return x + self.second(F.silu(self.first(F.silu(x))))


def _up(width: int, next_width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(width, 4 * next_width, 3, padding=1), nn.PixelShuffle(2))


class Encoder(nn.Module):
    """Pictures of 128 × 128 (batch, 3, 128, 128), from -1 to 1, to codes (batch, 16, 16, 16): principal
    components of their patches of 8 × 8. It is linear, so nothing is trained before the transformer can be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(PATCH_VALUES))
        self.register_buffer("basis", torch.zeros(CODE_DIM, PATCH_VALUES))

    @torch.no_grad()
    def fit(self, pictures: Tensor) -> None:
        """Find the components. Each is divided by the root of its deviation, so strong ones stay stronger."""
        patches = F.pixel_unshuffle(pictures, 8).permute(0, 2, 3, 1).flatten(0, 2)
        self.mean.copy_(patches.mean(0))
        centred = patches - self.mean
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
        strongest, components = values.flip(0)[:CODE_DIM], vectors.flip(1)[:, :CODE_DIM].T
        scale = strongest.pow(-0.25)
        overall = (strongest * scale**2).mean().sqrt()
        self.basis.copy_(components * (scale / overall)[:, None])

    def forward(self, pictures: Tensor) -> Tensor:
        """Encode."""
        patches = F.pixel_unshuffle(pictures, 8).permute(0, 2, 3, 1)
        return ((patches - self.mean) @ self.basis.T).permute(0, 3, 1, 2).contiguous()


class Decoder(nn.Module):
    """Codes to pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(CODE_DIM, 128, 3, padding=1),
            Residual(128),
            Residual(128),
            _up(128, 96),
            Residual(96),
            Residual(96),
            _up(96, 48),
            Residual(48),
            Residual(48),
            _up(48, 24),
            Residual(24),
        )
        self.head = nn.Conv2d(24, 4 * LAYERS, 3, padding=1)

    def forward(self, codes: Tensor, scale: float = 4.0) -> Tensor:
        """Decode to `scale` times 128 pixels a side, from -1 to 1."""
        fields = F.interpolate(self.head(F.silu(self.net(codes))), scale_factor=scale, mode="bilinear")
        strengths, colours = fields[:, :LAYERS], fields[:, LAYERS:].unflatten(1, (3, LAYERS))
        return (torch.softmax(8 * strengths, 1).unsqueeze(1) * colours).sum(2)


@dataclass(frozen=True)
class TransformerSize:
    """Widths of the picture transformer."""

    words: int
    caption_words: int
    width: int = 128
    blocks: int = 6
    heads: int = 4


class Sketch(nn.Module):
    """Mean codes of a caption's pictures: a net that is fully connected, so an example costs a tenth of the
    transformer's.

    It learns fast where things stand and what colours they have. The transformer has the edges left to learn.
    """

    def __init__(self, size: TransformerSize, width: int = 512, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, 48)
        self.enter = nn.Linear(48 * size.caption_words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.leave = nn.Linear(width, CODE_DIM * CODES * CODES)
        nn.init.zeros_(self.leave.bias)

    def forward(self, words: Tensor) -> Tensor:
        """Return codes (batch, 16, 16, 16) of word numbers (batch, caption words)."""
        x = self.enter(self.words(words).flatten(1))
        for layer in self.layers:
            x = x + layer(F.silu(F.layer_norm(x, (x.shape[-1],))))
        return self.leave(F.silu(F.layer_norm(x, (x.shape[-1],)))).unflatten(1, (CODE_DIM, CODES, CODES))


class Block(nn.Module):
    """Attention over codes and words, then a feed-forward net; six modulations come from outside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.rise = nn.Linear(width, 4 * width)
        self.fall = nn.Linear(4 * width, width)
        self.modulation = nn.Parameter(torch.zeros(6, width))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.fall.weight)

    def attend(self, x: Tensor) -> Tensor:
        """Mix tokens; queries and keys have unit length, so their products stay small."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=8.0)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Update the tokens (batch, tokens, width); `modulation` is (batch, 6, width)."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (
            (modulation + self.modulation).unsqueeze(2).unbind(1)
        )
        width = (x.shape[-1],)
        x = x + (1 + gate_a) * self.attend(F.layer_norm(x, width) * (1 + scale_a) + shift_a)
        hidden = F.gelu(self.rise(F.layer_norm(x, width) * (1 + scale_f) + shift_f), approximate="tanh")
        return x + (1 + gate_f) * self.fall(hidden)


class PictureTransformer(nn.Module):
    """Estimates codes from a point between noise (time 0) and codes (time 1), given caption and sketch."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size = size
        width = size.width
        self.enter = nn.Linear(2 * TOKEN_DIM, width)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, width))
        self.words = nn.Embedding(size.words, width)
        self.slots = nn.Parameter(0.02 * torch.randn(size.caption_words, width))
        self.time = nn.Sequential(nn.Linear(128, width), nn.SiLU(), nn.Linear(width, width))
        self.caption = nn.Linear(size.caption_words * width, width)
        self.modulation = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(Block(width, size.heads) for _ in range(size.blocks))
        self.last = nn.Parameter(torch.zeros(2, width))
        self.leave = nn.Linear(width, TOKEN_DIM)
        nn.init.normal_(self.words.weight, std=0.3)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.modulation.weight)

    def forward(self, codes: Tensor, sketch: Tensor, times: Tensor, words: Tensor) -> Tensor:
        """Estimate the codes that the flow ends in; `words` are word numbers (batch, caption words)."""
        word_vectors = self.words(words) + self.slots
        moment = self.time(_waves(times)) + self.caption(word_vectors.flatten(1))
        modulation = self.modulation(F.silu(moment)).unflatten(1, (6, -1))
        seen = torch.cat([_to_tokens(codes), _to_tokens(sketch)], 2)
        x = torch.cat([self.enter(seen) + self.places, word_vectors], 1)
        for block in self.blocks:
            x = block(x, modulation)
        x = F.layer_norm(x[:, :TOKENS], (x.shape[-1],))
        shift, scale = (self.last + moment.unsqueeze(1)).chunk(2, 1)
        return sketch + _to_codes(self.leave(x * (1 + scale) + shift))


def _waves(times: Tensor) -> Tensor:
    frequencies = torch.exp(torch.linspace(0, 6, 64, device=times.device))
    angles = times[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1).to(times.dtype)


def _to_tokens(codes: Tensor) -> Tensor:
    """Bring codes (batch, 16, 16, 16) to tokens (batch, 64, 64): squares of 2 × 2."""
    side = CODES // PATCH
    split = codes.unflatten(3, (side, PATCH)).unflatten(2, (side, PATCH))  # dim, y, dy, x, dx
    return split.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _to_codes(tokens: Tensor) -> Tensor:
    """Undo `_to_tokens`. Both use what every exporter of ONNX knows."""
    side = CODES // PATCH
    split = tokens.unflatten(2, (CODE_DIM, PATCH, PATCH)).unflatten(1, (side, side))  # y, x, dim, dy, dx
    return split.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
