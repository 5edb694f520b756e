"""Public traces of one table: their sources, columns and sizes.

Azure LLM inference trace 2023: CSV of the conversation and code services.

Source: Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024;
published in Azure/AzurePublicDataset under CC-BY-4.0.
Columns: `TIMESTAMP` (date and time in steps of 100 ns), `ContextTokens`, `GeneratedTokens`.
Size: generated tokens + `prompt_token_frac` × context tokens.

Mooncake traces: JSONL with the prefix-cache blocks of every prompt.

Source: Qin et al., "Mooncake: Trading more storage for less computation", FAST 2025; published in
kvcache-ai/Mooncake under Apache-2.0.
Keys: `timestamp` (ms from the start), `input_length`, `output_length` (tokens), `hash_ids` (one id for each
block of 512 prompt tokens; equal ids are equal prefixes).
Size: output tokens + `prompt_token_frac` × input tokens, whether cached or not.
Arrivals lie on a grid of about 3 s; requests with equal timestamps keep the order of the file.

Qwen-Bailian traces: JSONL of chats with the prefix-cache blocks of every prompt.

Source: Wang et al., "KVCache cache in the wild: Characterizing and optimizing KVCache cache at a large cloud
provider", USENIX ATC 2025; published in alibaba-edu/qwen-bailian-usagetraces-anon.
Keys: those of Mooncake's traces, but `timestamp` in seconds from the start and blocks of 16 tokens;
`chat_id`, `parent_chat_id` (−1: none) and `turn` of a conversation, `type` (text, search, image, file).
Size: output tokens + `prompt_token_frac` × input tokens, whether cached or not.

Alibaba GenTD26 `lora_request_trace`: CSV of text-to-image requests with base models and LoRA adapters.

Source: Lin et al., "Understanding diffusion model serving in production", SoCC 2025; published in
alibaba/clusterdata, `cluster-trace-v2026-GenAI` (no licence stated).
Columns: `gmt_create` (1 s steps), `predict_type`, `predict_status`, `exec_time_seconds` (loading included),
`groupId`, `num_images_per_prompt`, `num_inference_steps`, `checkpoint_model_version_id`, `num_lora`.
Size: inference steps × images.

Rows whose status is not SUCCEED are dropped and counted; `keep_unfinished` keeps those of them that tell
their steps and images (FAILED ones do, PENDING ones do not).
The file tells how many adapters a request uses but not which: `adapter` is `lora-1`, `lora-2`, ... or null.
Prompt lengths are in characters, hence left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from trimtab.traces.formats import SourceColumn, TraceFormat, image_size, sized_from_tokens
from trimtab.traces.slicing import TraceOptions

AZURE_LLM_2023 = TraceFormat(
    name="azure-llm-2023",
    columns=(
        SourceColumn("arrival_s", "TIMESTAMP"),
        SourceColumn("prompt_tokens", "ContextTokens"),
        SourceColumn("output_tokens", "GeneratedTokens"),
    ),
    needed=frozenset({"arrival_s", "prompt_tokens", "output_tokens"}),
    time_unit="datetime",
    origin="first",
    derived=sized_from_tokens,
)


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


def _derived(_: TraceOptions) -> Mapping[str, pl.Expr]:
    adapters = pl.col("num_lora").cast(pl.Float64, strict=False).cast(pl.Int64)
    label = pl.concat_str(pl.lit("lora-"), adapters.cast(pl.String))
    return {"size": image_size(), "adapter": pl.when(adapters > 0).then(label)}


def _drop_reason(options: TraceOptions) -> pl.Expr:
    status = pl.col("predict_status")
    finished = status == "SUCCEED"
    sized = pl.col("steps").is_not_null() & pl.col("images").is_not_null()
    kept = finished | sized if options.keep_unfinished else finished
    return pl.when(kept.not_()).then(status)


GENTD26 = TraceFormat(
    name="gentd26",
    columns=(
        SourceColumn("arrival_s", "gmt_create"),
        SourceColumn("class", "predict_type"),
        SourceColumn("model", "checkpoint_model_version_id"),
        SourceColumn("tenant", "groupId"),
        SourceColumn("images", "num_images_per_prompt"),
        SourceColumn("steps", "num_inference_steps"),
        SourceColumn("recorded_s", "exec_time_seconds"),
    ),
    needed=frozenset({"arrival_s", "model", "images", "steps"}),
    time_unit="datetime",
    origin="first",
    raw=("predict_status", "num_lora"),
    derived=_derived,
    drop_reason=_drop_reason,
)
