"""A profile from published figures of a GPU, where nothing was measured.

An operation takes as long as its bytes or its arithmetic, whichever is longer (Williams et al., "Roofline",
CACM 2009), and a fixed time. The factors are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.profiles.latency_profile import LatencyProfile
from trimtab.profiles.model_shapes import VALUE_BYTES, shape_of

BANDWIDTH_FRAC = 0.8  # of the published bandwidth; AIConfigurator's factor for all GPUs, "nonofficial"
FLOPS_FRAC = 0.7  # of the published dense operations: an assumption
OPERATION_S = 3e-6  # of any operation; AIConfigurator's constant, "nonofficial"
OPERATIONS = 9  # of a layer: two norms, four products of matrices, rotation, attention, activation
HOP_S = 1e-5  # of a message between GPUs; AIConfigurator's p2p_latency, "nonofficial"
REDUCED = 2  # all-reduces of a layer
TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Published figures of a GPU; operations are dense ones in bf16."""

    name: str
    memory_gib: float
    bytes_per_s: float
    flops: float
    link_bytes_per_s: float  # to the next GPU, in one direction

    def reduce_s(self, sent_bytes: float, ranks: int) -> float:
        """An all-reduce over a ring."""
        if ranks == 1:
            return 0.0
        return HOP_S + 2.0 * (ranks - 1) / ranks * sent_bytes / self.link_bytes_per_s


def roofline(gpu: Gpu, model: str, tensor_parallel: int) -> LatencyProfile:
    """A dense model in bf16 on so many GPUs. Raises UsageError for a model whose shape is not known."""
    shape, ranks = shape_of(model), tensor_parallel
    bytes_per_s, flops = BANDWIDTH_FRAC * gpu.bytes_per_s, FLOPS_FRAC * gpu.flops
    weights_s = shape.parameters * VALUE_BYTES / ranks / bytes_per_s
    fixed_s = shape.layers * OPERATIONS * OPERATION_S
    dense_s = {}
    for tokens in TOKENS:
        reduce_s = gpu.reduce_s(tokens * shape.hidden * VALUE_BYTES, ranks)
        product_s = max(weights_s, 2.0 * shape.parameters * tokens / ranks / flops)
        dense_s[tokens] = product_s + fixed_s + REDUCED * shape.layers * reduce_s
    turn = weights_s * ranks * flops / (2.0 * shape.parameters)  # tokens where arithmetic takes over
    if TOKENS[0] < turn < TOKENS[-1] and round(turn) not in dense_s:
        reduce_s = gpu.reduce_s(turn * shape.hidden * VALUE_BYTES, ranks)
        dense_s[round(turn)] = weights_s + fixed_s + REDUCED * shape.layers * reduce_s
    context_s = shape.kv_bytes_per_token(ranks) / bytes_per_s
    return LatencyProfile(
        gpu=gpu.name,
        model=model,
        precision="bf16",
        tensor_parallel=ranks,
        source="roofline",
        notes=f"bandwidth × {BANDWIDTH_FRAC}, arithmetic × {FLOPS_FRAC}, {OPERATION_S:g} s an operation",
        memory_gib=gpu.memory_gib,
        weights_gib=shape.weights_gib(ranks),
        kv_bytes_per_token=shape.kv_bytes_per_token(ranks),
        dense_s=dict(sorted(dense_s.items())),
        sequence_s={1: 0.0},
        attention_s={1: 0.0},
        context_s={1: context_s},
        mixed_context_s=context_s,
        pair_s=4.0 * shape.layers * shape.heads * shape.head_dim / ranks / flops,
    )
