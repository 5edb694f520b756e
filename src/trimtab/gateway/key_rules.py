"""The rules of a key made at run time: its models and its budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trimtab.gateway.model import Refusal


class TokenPrice(NamedTuple):
    """Prices of a model, in US dollars."""

    usd_per_prompt_token: float
    usd_per_output_token: float

    def usd(self, prompt_tokens: float, output_tokens: float) -> float:
        """The price of these tokens."""
        return prompt_tokens * self.usd_per_prompt_token + output_tokens * self.usd_per_output_token


Prices = Mapping[str, TokenPrice]
"""By model; models without prices are left out."""


class KeyRules:
    """The rules of one key. `spent` is set from outside, a few seconds behind."""

    __slots__ = ("_models", "_prices", "spent")

    def __init__(self, models: frozenset[str] = frozenset(), prices: Prices | None = None) -> None:
        """`models`: empty = all. `prices`: those that its budget counts by; None = it counts no money."""
        self._models, self._prices = models, prices
        self.spent: Refusal | None = None  # the budget is used up

    def allows(self, model: str, route: str = "") -> bool:
        """Whether it may use a model, by its own name or by that of the route."""
        return not self._models or model in self._models or route in self._models

    def refusal(self, model: str, route: str) -> Refusal | None:
        """Why it may not send this request now. `model` is empty where a request names none."""
        if model and not self.allows(model, route):
            message = f"This key may not use the model `{(route or model)[:200]}`."
            return Refusal(403, "model_not_allowed", message, param="model")
        if model and self._prices is not None and model not in self._prices:
            message = "This key has a budget in US dollars, and the model has no price."
            return Refusal(403, "model_without_price", message, param="model")
        return self.spent
