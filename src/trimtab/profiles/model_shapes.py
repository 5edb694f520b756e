"""Shapes of models, as their authors publish them: what memory and operations follow from."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import UsageError
from trimtab.profiles.latency_profile import GIB
from trimtab.validation.names import nearest

VALUE_BYTES = 2  # of an activation or a key
WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a transformer with grouped queries; experts are 0 for a dense model."""

    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    experts_per_token: int = 0

    def kv_bytes_per_token(self, tensor_parallel: int) -> float:
        """Bytes of keys and values of a token on one GPU; a head is not split."""
        heads = max(1.0, self.kv_heads / tensor_parallel)
        return 2.0 * self.layers * heads * self.head_dim * VALUE_BYTES

    def weights_gib(self, tensor_parallel: int, precision: str = "bf16") -> float:
        """Weights on one GPU. Raises UsageError for a precision that is not known."""
        if precision not in WEIGHT_BYTES:
            expected = f"a precision of weights: {nearest(precision, WEIGHT_BYTES)}"
            raise UsageError("unknown precision", field="precision", value=precision, expected=expected)
        return self.parameters * WEIGHT_BYTES[precision] / tensor_parallel / GIB

    def activated(self, tokens: float, ranks: int) -> float:
        """Expected number of experts of a rank that so many tokens reach, if all are as likely."""
        missed: float = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.experts / ranks * (1.0 - missed)


SHAPES = {  # config.json of each model on Hugging Face
    "meta-llama/Llama-3.1-8B": ModelShape(8.03e9, 32, 4096, 32, 8, 128),
    "meta-llama/Llama-3.1-70B": ModelShape(70.55e9, 80, 8192, 64, 8, 128),
    "Qwen/Qwen3-32B": ModelShape(32.76e9, 64, 5120, 64, 8, 128),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ModelShape(30.53e9, 48, 2048, 32, 4, 128, 128, 8),
}


def shape_of(model: str) -> ModelShape:
    """The shape of a model. Raises UsageError for one that is not known."""
    if model not in SHAPES:
        expected = f"a model whose shape is known: {nearest(model, SHAPES)}"
        raise UsageError("unknown model", field="model", value=model, expected=expected)
    return SHAPES[model]
