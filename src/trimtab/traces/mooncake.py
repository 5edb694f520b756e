"""Mooncake traces: JSONL with the prefix-cache blocks of every prompt.

Source: Qin et al., "Mooncake: Trading more storage for less computation", FAST 2025; published in
kvcache-ai/Mooncake under Apache-2.0.
Keys: `timestamp` (ms from the start), `input_length`, `output_length` (tokens), `hash_ids` (one id for each
block of 512 prompt tokens; equal ids are equal prefixes).
Size: output tokens + `prompt_token_frac` × input tokens, whether cached or not.
Arrivals lie on a grid of about 3 s; requests with equal timestamps keep the order of the file.
"""

from __future__ import annotations

from trimtab.traces.formats import SourceColumn, TraceFormat, sized_from_tokens

MOONCAKE = TraceFormat(
    name="mooncake",
    columns=(
        SourceColumn("arrival_s", "timestamp"),
        SourceColumn("prompt_tokens", "input_length"),
        SourceColumn("output_tokens", "output_length"),
        SourceColumn("prefix_blocks", "hash_ids"),
    ),
    needed=frozenset({"arrival_s", "prompt_tokens", "output_tokens"}),
    time_unit="ms",
    origin="zero",
    derived=sized_from_tokens,
)
