"""Default classes and models for a trace of a known format, if no scenario or cluster file defines them.

Language models: 45 ms a token is what Llama-2-70B takes on eight A100 80 GB at batch 1 (token_time, 512 to
4,096 prompt tokens, the profile published with Splitwise, ISCA 2024); the prompt is in the size (see
`TraceOptions`). Speed 1 is therefore such a node.

Image generation: in GenTD26, the lower quartile of execution times without adapter is 14 s for one image of
30 steps and 18 s for eight on the most used model: 13.4 s + 0.019 s per step and image. Loads are medians of
its metrics: 23 s for a base model, 4.4 s for an adapter. The trace tells that a request has adapters but not
which: one of 245, as many as its sister file names, by an exponent that gives the ten most popular a third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served, ServiceClass
from trimtab.traces import TraceOptions

PROMPT_TOKEN_UNITS: Final = TraceOptions().prompt_token_frac

_CHAT: Final = Served(
    {}, {}, {"chat": ServiceClass(unit_s=0.045, unit="output token", prompt_token_units=PROMPT_TOKEN_UNITS)}
)

_IMAGES: Final = Served(
    models={"checkpoint": ItemFamily(memory_gib=6.5, load_s=23.0)},
    adapters={"lora": ItemFamily(memory_gib=0.2, load_s=4.4, count=245, zipf=0.8)},
    classes={
        "image": ServiceClass(
            model="checkpoint", adapter="lora", fixed_s=13.4, unit_s=0.019, unit="step and image"
        )
    },
)

_SECONDS: Final = Served({}, {}, {"request": ServiceClass(unit_s=1.0, unit="second at speed 1")})

_OF_TOKENS: Final = (
    *("azure-llm-2023", "mooncake", "burstgpt", "litellm", "vllm", "sglang", "sglang-metrics", "otel-genai"),
)
_BY_FORMAT: Final[Mapping[str, Served]] = {**dict.fromkeys(_OF_TOKENS, _CHAT), "gentd26": _IMAGES}

ADAPTERS_NOT_NAMED: Final = frozenset({"gentd26"})
"""Formats whose adapter column tells only that there is one."""

BLOCK_TOKENS: Final[Mapping[str, float]] = {"mooncake": 512.0, "gateway": 128.0}
"""Prompt tokens of a prefix block, by format."""


def default_served(format_name: str) -> Served:
    """Classes for a trace of this format; of any other format, sizes are seconds."""
    return _BY_FORMAT.get(format_name, _SECONDS)
