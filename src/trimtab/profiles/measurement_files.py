"""Files of measurements that a profile can be fitted to. The columns of a file tell what it holds."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError
from trimtab.profiles.iteration_rows import IterationRows, decode_rows, prompt_rows
from trimtab.validation.names import listed

Floats = NDArray[np.float64]
Table = Mapping[str, Sequence[str]]

MS = 1e-3

# Columns by which a file is known, in the order in which they are looked for.
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
DENSE = ("layer", "tokens", "time_us")
PER_SEQUENCE = ("layer", "sequences", "time_us")
EXPERTS = ("tokens", "activated_experts", "time_us")
SKEW = ("pc", "n_label", "skew_rate_label", "kv_big_label", "kp_label", "alpha", "n_samples")
ALL_REDUCE = ("size", "num_workers", "time_stats.all_reduce.median")
SPLITWISE = (
    "model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size", "prompt_time",
    "token_time",
)  # fmt: skip
SERVED = (
    "model_path", "system", "precision", "backend", "mode", "tp_size", "pp_size", "attention_dp_size",
    "moe_ep_size", "silicon_data_source", "isl", "osl", "silicon_tpot_ms",
)  # fmt: skip
REQUESTS = ("node", "start_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens")
ROWS = ("batch", "context", "prompt_tokens", "seconds")
TABLE = ("batch", "size", "seconds")  # of node types with kind: table
KINDS = {
    "attention": ATTENTION,
    "dense": DENSE,
    "per_sequence": PER_SEQUENCE,
    "experts": EXPERTS,
    "skew": SKEW,
    "all_reduce": ALL_REDUCE,
    "splitwise": SPLITWISE,
    "served": SERVED,
    "requests": REQUESTS,
    "rows": ROWS,
}
NEGATIVE = ("alpha",)  # columns that may be below 0
TEXTS = {
    "node",
    "layer",
    "model",
    "hardware",
    "n_label",
    "skew_rate_label",
    "kv_big_label",
    "kp_label",
    *SERVED,
}
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")


@dataclass(frozen=True)
class MeasurementFile:
    """A table of measurements."""

    path: Path
    kind: str  # of KINDS
    table: Table

    def floats(self, name: str) -> Floats:
        """A column of numbers, [rows]."""
        return np.array(self.table[name], float)


def read_measurements(path: Path) -> MeasurementFile:
    """Read a CSV file, also .gz.

    Raises UsageError: it cannot be read, its columns are those of no kind, or a number is none or negative.
    """
    kind, table = _read(path, KINDS)
    return MeasurementFile(path, kind, table)


def read_table(path: Path) -> dict[int, dict[float, float]]:
    """Seconds by number of requests and size, from a CSV file with the columns of TABLE, also .gz.

    Of several measurements of a number and size the mean. Raises UsageError as `read_measurements` does, and
    for numbers of requests that are not whole, seconds of 0, and no rows.
    """
    _, table = _read(path, {"table": TABLE})
    found: dict[tuple[int, float], list[float]] = {}
    for line, (batch, size, seconds) in enumerate(zip(*(table[name] for name in TABLE), strict=True), 2):
        for field, text, is_right, expected in (
            ("batch", batch, float(batch) >= 1 and float(batch) % 1 == 0, "a whole number from 1 on"),
            ("seconds", seconds, float(seconds) > 0, "a number above 0"),
        ):
            if not is_right:
                where = f"{path}: row {line - 1}"
                raise UsageError("cannot be used", file=where, field=field, value=text, expected=expected)
        found.setdefault((int(float(batch)), float(size)), []).append(float(seconds))
    means: dict[int, dict[float, float]] = {}
    for (n, x), each in sorted(found.items()):
        means.setdefault(n, {})[x] = sum(each) / len(each)
    return means


def _read(path: Path, kinds: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, list[str]]]:
    """The first of these kinds whose columns a CSV file has, and these columns. Raises UsageError."""
    file = str(path)
    reader = csv.reader(io.StringIO(text_of(path)))
    head = next(reader, [])
    kind = next((name for name, columns in kinds.items() if set(columns) <= set(head)), None)
    if kind is None:
        expected = _nearest_kind(head, kinds)
        raise UsageError("unknown columns", file=file, value=",".join(head), expected=expected)
    wanted = {name: head.index(name) for name in kinds[kind]}
    table: dict[str, list[str]] = {name: [] for name in wanted}
    for row in reader:
        for name, i in wanted.items():
            table[name].append(_checked(row, i, name, f"{file}: line {reader.line_num}"))
    if not table[kinds[kind][0]]:
        raise UsageError("no rows", file=file, expected="a row of numbers at least")
    return kind, table


def text_of(path: Path) -> str:
    """The text of a file, also of a .gz. Raises UsageError."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except (EOFError, UnicodeDecodeError) as error:
        raise UsageError("cannot be read", file=str(path), expected="CSV, also as .gz") from error


def _nearest_kind(head: Collection[str], kinds: Mapping[str, Sequence[str]]) -> str:
    """Missing columns of the kind that shares most with these."""
    best = max(kinds.values(), key=lambda columns: len(set(columns) & set(head)) / len(columns))
    missing = [name for name in best if name not in head]
    if len(missing) == len(best):
        return f"columns such as {','.join(list(kinds.values())[-1])}"
    return f"also the columns {', '.join(missing)}, beside {', '.join(n for n in best if n in head)}"


def _checked(row: Sequence[str], i: int, name: str, where: str) -> str:
    text = row[i] if i < len(row) else ""
    if name in TEXTS:
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (number < 0.0 and name not in NEGATIVE):
        raise UsageError("cannot be used", file=where, field=name, value=text, expected="a number from 0 on")
    return text


def iteration_rows(file: MeasurementFile) -> IterationRows:
    """Iterations of a file of ROWS: decoding rows, their context in all, prompt tokens, seconds.

    A row with prompt tokens reads one whole prompt.
    """
    decoding, context, prompt, seconds = (file.floats(name) for name in ROWS)
    return IterationRows(decoding, context, (prompt > 0).astype(float), prompt, prompt**2 / 2, seconds)


def splitwise_rows(file: MeasurementFile, model: str, gpu: str, tensor_parallel: int) -> IterationRows:
    """Iterations of one model, GPU and number of GPUs from Splitwise's table (Patel et al., ISCA 2024).

    `prompt_time` is the iteration that reads all prompts, `token_time` the mean of those that decode.
    """
    keys = list(zip(*(file.table[n] for n in ("model", "hardware", "tensor_parallel")), strict=True))
    wanted = (model, gpu, str(tensor_parallel))
    of = np.array([key == wanted for key in keys])
    if not of.any():
        found = [f"{m} {g} {tp}" for m, g, tp in dict.fromkeys(keys)]
        raise UsageError(
            "no such model, GPU and number of GPUs",
            file=str(file.path),
            value=" ".join(wanted),
            expected=listed(found),
        )
    names = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time")
    prompt, batch, tokens, prompt_ms, token_ms = (file.floats(name)[of] for name in names)
    read, made = prompt_ms > 0, token_ms > 0  # 0: not measured
    decodes = decode_rows(batch[made], (batch * (prompt + tokens / 2))[made], MS * token_ms[made])
    return decodes.joined(prompt_rows(batch[read], prompt[read], MS * prompt_ms[read]))


@dataclass(frozen=True, slots=True)
class ServedConfiguration:
    """What was served how, in a file of SERVED."""

    model: str
    gpu: str
    precision: str
    backend: str
    tensor_parallel: str
    pipeline_parallel: str
    expert_parallel: str
    data_parallel: str

    def __str__(self) -> str:
        parallel = f"tp{self.tensor_parallel} pp{self.pipeline_parallel} ep{self.expert_parallel or 1}"
        return (
            f"{self.model} {self.gpu} {self.precision} {self.backend} {parallel} dp{self.data_parallel or 1}"
        )


def served_rows(file: MeasurementFile) -> dict[ServedConfiguration, IterationRows]:
    """Mean iterations by configuration, from tokens per second at a constant number of requests.

    With n requests on an engine, an iteration makes n tokens and reads n · input ÷ output tokens of prompts.
    Rows that say no number of requests, or where prompts are read elsewhere, are left out.
    """
    found: dict[ServedConfiguration, list[tuple[float, ...]]] = {}
    columns = (file.table[name] for name in SERVED)
    for model, gpu, precision, backend, mode, tp, pp, dp, ep, told, given, made, tpot_ms in zip(
        *columns, strict=True
    ):
        at_once = _CONCURRENCY.search(told)
        if mode != "agg" or at_once is None or not tpot_ms:
            continue
        n, read, output = int(at_once[1]) / max(1, int(dp or 1)), float(given), float(made)
        row = (n, n * (read + output / 2), n / output, n * read / output, n * read**2 / output / 2)
        key = ServedConfiguration(model, gpu, precision, backend, tp, pp, ep, dp)
        found.setdefault(key, []).append((*row, MS * float(tpot_ms)))
    return {key: IterationRows(*np.array(rows).T) for key, rows in found.items()}


def distserve_fields(path: Path, model: str, tensor_parallel: int) -> dict[str, Any]:
    """Seconds of a profile from DistServe's coefficients in ms (Zhong et al., OSDI 2024).

    A prompt takes c0 + c1 · tokens + c2 · tokens²; an iteration c0 + c1 · context + c2 · rows, with other
    numbers from a batch size on.
    """
    file = str(path)
    try:
        data = json.loads(text_of(path))
        of = data[model][str(tensor_parallel)]
        at = int(of["decoding_large_small_bs_threshold"])
        prompt, small, large = (of[f"{name}"] for name in ("prefill", "decoding_smallbs", "decoding_largebs"))
    except (json.JSONDecodeError, TypeError) as error:
        raise UsageError("is no table of DistServe", file=file, expected="JSON") from error
    except KeyError as error:
        found = [f"{name} {tp}" for name, by in data.items() for tp in by]
        value = f"{model} {tensor_parallel}"
        raise UsageError("no such model", file=file, value=value, expected=listed(found)) from error
    points = ((1, small), (at, small), (at + 1, large), (4 * at, large))
    return {
        "dense_s": {1: 0.0},
        "sequence_s": {1: 0.0},
        "attention_s": {n: MS * (c0 + c2 * n) for n, (c0, _, c2) in points},
        "context_s": {n: MS * c1 for n, (_, c1, _) in points},
        "mixed_s": MS * prompt[0],
        "mixed_token_s": MS * prompt[1],
        "pair_s": 2 * MS * prompt[2],
        "mixed_row_s": MS * large[2],
        "mixed_context_s": MS * large[1],
    }
