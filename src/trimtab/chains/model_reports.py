"""What the report of a run says of models that its stages have optimised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.jobs.run_rows import RunRecord
from trimtab.live.model_scope import ModelRecord

HEADINGS: Final = ("model", "runs as", "outputs differ by", "call (ms)", "file (MB)", "memory (MB)")
EXPLAINED: Final = (
    "Plain → optimised, in the first worker. A call is the median of calls with an example; memory is what "
    "the process held more, with the libraries of the runtime."
)


def models_of_run(record: RunRecord) -> dict[str, list[ModelRecord]]:
    """The optimised models of a run of the journal, by stage."""
    told = json.loads(record.options).get("models", {})
    return {stage: [ModelRecord(*(_number(v) for v in row)) for row in rows] for stage, rows in told.items()}


def _number(value: Any) -> Any:
    return math.nan if value is None else value


def model_rows(models: Mapping[str, Sequence[ModelRecord]]) -> list[tuple[str, ...]]:
    """A row of texts for each model, behind its stage."""
    return [(stage, *_cells(record)) for stage, records in models.items() for record in records]


def _cells(r: ModelRecord) -> tuple[str, ...]:
    return (
        r.model,
        r.how,
        f"{100 * r.error:.2g} % (at most {100 * r.tolerance:.3g} %)",
        _from_to(1e3 * r.plain_s, 1e3 * r.call_s),
        _from_to(r.plain_bytes / 1e6, r.file_bytes / 1e6),
        _from_to(r.plain_memory_bytes / 1e6, r.memory_bytes / 1e6),
    )


def _from_to(plain: float, optimised: float) -> str:
    return "not measured" if math.isnan(optimised) else f"{plain:.3g} → {optimised:.3g}"
