"""A recurrent network that reads a queue and points to one pair of request and slot after another.

Source
    Oriol Vinyals, Meire Fortunato, Navdeep Jaitly: "Pointer networks", NeurIPS 2015, section 2.3; the gated
    unit: Kyunghyun Cho and others, EMNLP 2014.
Deviations from the source
    See the policy `learned-pointer`: a gated recurrent unit for the LSTM, softsign, and a pointer to pairs.
"""

from __future__ import annotations

from typing import Any

import torch

from trimtab.learn.methods.plan_network import SequenceNetwork, chosen_features
from trimtab.policies.shared.plan_networks import pointer_shapes

_softsign = torch.nn.functional.softsign


class RecurrentPointer(SequenceNetwork):
    """The network of `learned-pointer`, for training."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(pointer_shapes(width), seed)

    def _terms(self, x: Any) -> tuple[Any, Any, Any]:
        queue = x.mean(dim=2)  # (n, requests, features)
        state = queue.new_zeros(len(queue), len(self.of["bias"]))
        states = []
        for i in range(queue.shape[1]):
            state = self._gated("read", queue[:, i], state)
            states.append(state)
        read = torch.stack(states, dim=1)
        return read @ self.of["request"] + self.of["bias"], x.mean(dim=1) @ self.of["slot"], state

    def _steps(self, x: Any, requests: Any, slots: Any, memory: Any) -> Any:
        chosen, states = chosen_features(x, requests, slots), [memory]
        for step in range(requests.shape[1] - 1):
            states.append(self._gated("write", chosen[:, step], states[-1]))
        return torch.stack(states, dim=1)

    def _gated(self, unit: str, x: Any, state: Any) -> Any:
        ours = (x @ self.of[f"{unit}_input"] + self.of[f"{unit}_bias"]).chunk(3, dim=-1)
        theirs = (state @ self.of[f"{unit}_state"]).chunk(3, dim=-1)
        reset, keep = (0.5 + 0.5 * _softsign(a + b) for a, b in zip(ours[:2], theirs[:2], strict=True))
        return (1.0 - keep) * _softsign(ours[2] + reset * theirs[2]) + keep * state
