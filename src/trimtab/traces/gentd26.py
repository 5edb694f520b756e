"""Alibaba GenTD26 `lora_request_trace`: CSV of text-to-image requests with base models and LoRA adapters.

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

from trimtab.traces.columns import image_size
from trimtab.traces.formats import SourceColumn, TraceFormat
from trimtab.traces.slicing import TraceOptions


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
