"""From files of measurements of any form to a fitted profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import UsageError
from trimtab.profiles.fit_profile import FittedProfile, Measurements, fit_profile, fit_served
from trimtab.profiles.iteration_rows import IterationRows
from trimtab.profiles.latency_profile import GIB, MEMORY_FRAC, LatencyProfile
from trimtab.profiles.measurement_files import (
    MeasurementFile,
    distserve_fields,
    iteration_rows,
    read_measurements,
    served_rows,
    splitwise_rows,
)
from trimtab.profiles.model_shapes import shape_of
from trimtab.profiles.op_profiles import Operations, measurements_of
from trimtab.profiles.served_sources import fit_requests, fit_serving, tells_of_serving
from trimtab.validation.names import listed

OPERATIONS = ("attention", "dense", "per_sequence")
FURTHER = ("experts", "skew", "all_reduce")


@dataclass(frozen=True, slots=True)
class Described:
    """What a profile says beside seconds. None: as follows from the model, which must then be known."""

    gpu: str
    model: str
    memory_gib: float
    precision: str = "bf16"
    tensor_parallel: int = 1
    weights_gib: float | None = None
    kv_bytes_per_token: float | None = None
    kv_tokens: int | None = None
    batch_max: int = 256
    token_budget: int = 2048
    notes: str = ""

    def fields(self) -> dict[str, Any]:
        """Fields of a LatencyProfile. Raises UsageError: the model has to be known, or does not fit."""
        weights, kv_bytes = self.weights_gib, self.kv_bytes_per_token
        if weights is None or kv_bytes is None:
            shape = shape_of(self.model)
            weights = shape.weights_gib(self.tensor_parallel, self.precision) if weights is None else weights
            kv_bytes = shape.kv_bytes_per_token(self.tensor_parallel) if kv_bytes is None else kv_bytes
        if self.kv_tokens is None and weights >= MEMORY_FRAC * self.memory_gib:
            expected = f"more than {weights / MEMORY_FRAC:.1f}, for the weights; or the tokens of KV memory"
            raise UsageError("is too little", field="memory_gib", value=self.memory_gib, expected=expected)
        return {
            "gpu": self.gpu,
            "model": self.model,
            "precision": self.precision,
            "tensor_parallel": self.tensor_parallel,
            "source": "measured",
            "notes": self.notes,
            "memory_gib": self.memory_gib,
            "weights_gib": weights,
            "kv_bytes_per_token": kv_bytes,
            "batch_max": self.batch_max,
            "token_budget": self.token_budget,
            "kv_tokens": self.kv_tokens,
        }


def fit_files(
    paths: Sequence[Path],
    described: Described,
    backend: str = "vllm",
    base: LatencyProfile | None = None,
) -> FittedProfile:
    """Fit a profile to files of one form.

    The forms: operations (attention, dense and per_sequence, with experts, skew and all-reduces where they
    apply), rows of iterations, Splitwise's table, DistServe's coefficients (.json), and rows of servers,
    where `backend` and the fields of `described` choose the rows. Of what a server served (pages of its
    metrics, recordings of the gateway, requests with their times) the parts of `base` are scaled.

    Raises UsageError: files of several forms or none, missing columns, negative times, too few rows.
    """
    fields = described.fields()
    shown = ", ".join(path.name for path in paths)
    if len(paths) == 1 and paths[0].suffix == ".json":
        seconds = distserve_fields(paths[0], described.model, described.tensor_parallel)
        return _unchecked(LatencyProfile.model_validate(fields | seconds))
    if any(tells_of_serving(path) for path in paths):
        return fit_serving(paths, _needed(base), fields, shown)
    files = [read_measurements(path) for path in paths]
    kinds = {file.kind: file for file in files}
    if set(OPERATIONS) <= set(kinds) and set(kinds) <= {*OPERATIONS, *FURTHER} and len(kinds) == len(files):
        return fit_profile(_of_operations(kinds, described, fields), fields, shown)
    if len(kinds) != 1 or next(iter(kinds)) in (*OPERATIONS, *FURTHER):
        missing = [kind for kind in OPERATIONS if kind not in kinds]
        expected = (
            f"files of one form; of operations also {listed(missing)}" if missing else "files of one form"
        )
        raise UsageError("make no profile together", file=shown, value=listed(kinds), expected=expected)
    if files[0].kind == "requests":
        return fit_requests(files, _needed(base), fields, shown)
    if files[0].kind == "served":
        return fit_served(_served(files[0], described, backend), fields, shown)
    rows = [_rows(file, described) for file in files]
    joined = rows[0]
    for more in rows[1:]:
        joined = joined.joined(more)
    return fit_profile(Measurements(joined), fields, shown)


def _needed(base: LatencyProfile | None) -> LatencyProfile:
    if base is None:
        expected = "a profile that is near, for what traffic does not tell; see `trimtab profile roofline`"
        raise UsageError("is needed for what a server served", field="--base", expected=expected)
    return base


def _unchecked(profile: LatencyProfile) -> FittedProfile:
    """Coefficients that others have fitted: there are no rows to hold back."""
    none = np.zeros(0)
    return FittedProfile(profile, None, None, IterationRows(none, none, none, none, none, none), none)


def _rows(file: MeasurementFile, described: Described) -> IterationRows:
    if file.kind == "splitwise":
        return splitwise_rows(file, described.model, described.gpu, described.tensor_parallel)
    return iteration_rows(file)


def _served(file: MeasurementFile, described: Described, backend: str) -> IterationRows:
    by_configuration = served_rows(file)
    wanted = (described.model, described.gpu, described.precision, backend, str(described.tensor_parallel))
    for c, rows in by_configuration.items():
        if (c.model, c.gpu, c.precision, c.backend, c.tensor_parallel) == wanted:
            return rows
    found = [str(c) for c in by_configuration if (c.model, c.gpu) == (described.model, described.gpu)]
    expected = listed(found or sorted({f"{c.model} {c.gpu}" for c in by_configuration}))
    raise UsageError("no such configuration", file=str(file.path), value=" ".join(wanted), expected=expected)


def _of_operations(
    kinds: dict[str, MeasurementFile], described: Described, fields: dict[str, Any]
) -> Measurements:
    tables = {name: file.table for name, file in kinds.items()}
    kv_tokens = described.kv_tokens
    if kv_tokens is None:
        free_gib = MEMORY_FRAC * described.memory_gib - fields["weights_gib"]
        kv_tokens = int(free_gib * GIB / fields["kv_bytes_per_token"])
    shape = shape_of(described.model)
    return measurements_of(
        Operations(**tables), shape, described.tensor_parallel, kv_tokens, described.token_budget
    )
