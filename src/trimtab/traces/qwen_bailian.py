"""Qwen-Bailian traces: JSONL of chats with the prefix-cache blocks of every prompt.

Source: Wang et al., "KVCache cache in the wild: Characterizing and optimizing KVCache cache at a large cloud
provider", USENIX ATC 2025; published in alibaba-edu/qwen-bailian-usagetraces-anon.
Keys: those of Mooncake's traces, but `timestamp` in seconds from the start and blocks of 16 tokens;
`chat_id`, `parent_chat_id` (−1: none) and `turn` of a conversation, `type` (text, search, image, file).
Size: output tokens + `prompt_token_frac` × input tokens, whether cached or not.
"""

from __future__ import annotations

from trimtab.traces.formats import SourceColumn, TraceFormat, sized_from_tokens

QWEN_BAILIAN = TraceFormat(
    name="qwen-bailian",
    columns=(
        SourceColumn("arrival_s", "timestamp"),
        SourceColumn("prompt_tokens", "input_length"),
        SourceColumn("output_tokens", "output_length"),
        SourceColumn("prefix_blocks", "hash_ids"),
        SourceColumn("class", "type"),
        SourceColumn("original_id", "chat_id"),
    ),
    needed=frozenset({"arrival_s", "prompt_tokens", "output_tokens"}),
    time_unit="s",
    origin="zero",
    raw=("parent_chat_id", "turn"),
    derived=sized_from_tokens,
)
