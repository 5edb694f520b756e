"""A transformer that reads requests and slots and points to one pair after another.

Source
    Ashish Vaswani and others: "Attention is all you need", NeurIPS 2017, sections 3.1 and 3.2; without an
    encoding of positions, and with a pointer: Wouter Kool, Herke van Hoof, Max Welling: "Attention, learn to
    solve routing problems!", ICLR 2019; tokens scaled before each layer: Biao Zhang, Rico Sennrich: "Root
    mean square layer normalization", NeurIPS 2019.
Deviations from the source
    See the policy `learned-transformer`: softsign, two heads, and a pointer that reads the pair's features.
"""

from __future__ import annotations

from typing import Any

import torch

from trimtab.learn.methods.plan_network import SequenceNetwork
from trimtab.policies.shared.plan_networks import HEADS, LEAST_SQUARE, transformer_shapes


class TransformerPointer(SequenceNetwork):
    """The network of `learned-transformer`, for training."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(transformer_shapes(width), seed)

    def _terms(self, x: Any) -> tuple[Any, Any, Any]:
        n = x.shape[1]
        requests = x.mean(dim=2) @ self.of["request_in"] + self.of["kind"][0]
        slots = x.mean(dim=1) @ self.of["slot_in"] + self.of["kind"][1]
        tokens = torch.cat([requests, slots], dim=1)
        for layer in range(len(self.of["gain"])):
            seen = _scaled(tokens, self.of["gain"][layer, 0])
            tokens = tokens + _attended(seen @ self.of["attend"][layer]) @ self.of["attended"][layer]
            seen = _scaled(tokens, self.of["gain"][layer, 1])
            wide = torch.nn.functional.softsign(seen @ self.of["wide"][layer] + self.of["wide_bias"][layer])
            tokens = tokens + wide @ self.of["narrow"][layer]
        of_requests = tokens[:, :n] @ self.of["request"] + self.of["bias"]
        return of_requests, tokens[:, n:] @ self.of["slot"], tokens

    def _steps(self, x: Any, requests: Any, slots: Any, memory: Any) -> Any:
        rows, n = torch.arange(len(requests))[:, None], x.shape[2]
        chosen = memory[rows, requests] + memory[rows, n + slots]
        start = self.of["start"].expand(len(requests), 1, -1)
        states = torch.cat([start, chosen[:, :-1]], dim=1)
        seen = _attended(states @ self.of["step_attend"], is_causal=True)
        return states + seen @ self.of["step_attended"]


def _attended(keys: Any, *, is_causal: bool = False) -> Any:
    """Attention over tokens of (n, tokens, 3 width) queries, keys and values, (n, tokens, width)."""
    n, tokens, wide = keys.shape
    query, key, value = keys.view(n, tokens, 3, HEADS, wide // 3 // HEADS).permute(2, 0, 3, 1, 4)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return out.transpose(1, 2).reshape(n, tokens, wide // 3)


def _scaled(tokens: Any, gain: Any) -> Any:
    return tokens / (tokens.square().mean(dim=-1, keepdim=True) + LEAST_SQUARE).sqrt() * gain
