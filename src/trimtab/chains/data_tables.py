"""Tables as inputs and outputs of runs: Parquet, Arrow IPC, CSV, data frames, datasets of Ray Data."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from trimtab.chains.graph import Chain
from trimtab.chains.inputs import named_input
from trimtab.errors import MissingExtra, UsageError
from trimtab.traces.frames import as_frame

if TYPE_CHECKING:
    from trimtab.chains.results import Result

BLOCK_ROWS: Final = 1 << 16  # of a block of a dataset that is made of outputs
OUTPUT: Final = "output"  # the column of outputs that are no mappings
_PARQUET, _IPC, _CSV = "Parquet", "Arrow IPC", "CSV"
_FORMAT_OF: Final = {
    ".parquet": _PARQUET, ".pq": _PARQUET, ".arrow": _IPC, ".ipc": _IPC, ".feather": _IPC, ".csv": _CSV,
}  # fmt: skip


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table."""
    return path.suffix.lower() in _FORMAT_OF


def is_csv(path: Path) -> bool:
    """Whether a table's values have no types of their own."""
    return _FORMAT_OF[path.suffix.lower()] == _CSV


def read_table(path: Path, chain: Chain) -> pl.DataFrame:
    """The table in a file. Columns of CSV that the chain takes as text are text. Raises UsageError."""
    kind = _FORMAT_OF[path.suffix.lower()]
    try:
        with path.open("rb"):
            pass
        if kind == _PARQUET:
            return pl.read_parquet(path)
        if kind == _CSV:
            texts = {name: pl.String for name, given in chain.inputs.items() if given is str}
            return pl.read_csv(path, schema_overrides=texts, infer_schema_length=None)
        return _read_ipc(path)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise UsageError(problem, file=str(path), expected=kind) from error
    except pl.exceptions.PolarsError as error:
        problem = f"cannot be read: {str(error).partition(chr(10))[0]}"
        raise UsageError(problem, file=str(path), expected=kind) from error


def _read_ipc(path: Path) -> pl.DataFrame:
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    return pl.read_ipc(path) if is_file else pl.read_ipc_stream(path)


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table in the format that the file's name says. Raises UsageError."""
    kind = _FORMAT_OF[path.suffix.lower()]
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested() or dtype == pl.Binary]
    if kind == _CSV and nested:
        expected = "a file .parquet or .arrow, or .jsonl"
        problem = f"CSV has no lists and bytes, as in {', '.join(nested)}"
        raise UsageError(problem, file=str(path), expected=expected)
    part = path.with_name(f".{path.name}.part")
    if kind == _PARQUET:
        table.write_parquet(part)
    elif kind == _CSV:
        table.write_csv(part)
    else:
        table.write_ipc(part)
    part.replace(path)


class TableInputs:
    """The inputs in a table: one for each row, or for each block of rows.

    Args:
        frames: the table, or parts of it in order.
        block_rows: rows of a block; 0 = rows one by one.
    """

    def __init__(self, frames: Iterable[pl.DataFrame], chain: Chain, block_rows: int = 0) -> None:
        if block_rows < 0:
            raise UsageError("out of range", field="block_rows", value=block_rows, expected="0, or more")
        self._frames, self._chain, self._block_rows = frames, chain, block_rows
        self._read: list[pl.DataFrame] = []

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """The inputs by name. Raises UsageError if the chain's are not among the columns."""
        if self._block_rows:
            name, made = _block_input(self._chain)
            for frame in self._frames:
                for block in frame.iter_slices(self._block_rows):
                    yield {name: made(block)}
            return
        for frame in self._frames:
            self._read.append(frame)
            yield from _rows(frame, self._chain)

    def rows(self) -> pl.DataFrame | None:
        """The rows of all inputs so far, with all columns; None of blocks."""
        return pl.concat(self._read, how="vertical_relaxed") if self._read else None


def table_inputs(given: Any, chain: Chain, block_rows: int = 0) -> TableInputs | None:
    """The inputs in a data frame of polars, pandas or Arrow, or in a dataset of Ray Data; None in others."""
    if type(given).__module__.startswith("ray.data") and hasattr(given, "iter_batches"):
        batches = given.iter_batches(batch_size=block_rows or None, batch_format="pyarrow")
        return TableInputs(map(pl.DataFrame, batches), chain, block_rows)
    frame = as_frame(given) if not isinstance(given, list | tuple) else None
    if frame is None and block_rows:
        kind, expected = type(given).__name__, "a data frame, or a dataset of Ray Data"
        raise UsageError("blocks are parts of tables", field="inputs", value=kind, expected=expected)
    return None if frame is None else TableInputs([frame], chain, block_rows)


def _rows(frame: pl.DataFrame, chain: Chain) -> Iterator[Mapping[str, Any]]:
    names = list(chain.inputs)
    needed = [name for name in names if name not in chain.defaults]
    if set(needed) <= set(frame.columns) and (needed or set(names) & set(frame.columns)):
        yield from frame.select([name for name in names if name in frame.columns]).iter_rows(named=True)
    elif len(needed) == 1 and _is_mapping(chain.inputs[needed[0]]):
        yield from ({needed[0]: row} for row in frame.iter_rows(named=True))
    elif len(needed) == 1 and frame.width == 1:
        yield from ({needed[0]: value} for (value,) in frame.iter_rows())
    else:
        missing = next((name for name in needed if name not in frame.columns), "")
        raise UsageError(
            "has no column for an input of the chain", field=missing or "inputs",
            value=", ".join(frame.columns), expected=f"columns {', '.join(needed or names)}",
        )  # fmt: skip


def with_numbers(row: Mapping[str, Any], chain: Chain) -> Mapping[str, Any]:
    """A row of CSV, in which numbers are text if another value of their column is none."""
    return {name: _number(value, chain.inputs.get(name)) for name, value in row.items()}


def _number(value: Any, kind: Any) -> Any:
    if isinstance(value, str) and kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _block_input(chain: Chain) -> tuple[str, Callable[[pl.DataFrame], Any]]:
    """The input of a chain that takes blocks, and what a block is for it. Raises UsageError."""
    needed = [name for name in chain.inputs if name not in chain.defaults]
    if len(needed) != 1:
        raise UsageError(
            "takes several inputs, and a block is one", field=chain.name, value=", ".join(needed),
            expected="a chain of one input",
        )  # fmt: skip
    kind = chain.inputs[needed[0]]
    if getattr(kind, "__module__", "").startswith("pyarrow"):
        return needed[0], lambda block: block.to_arrow()
    if _is_mapping(kind):
        return needed[0], lambda block: block.to_dict(as_series=False)
    return needed[0], lambda block: block


def blocks(table: Any, rows: int) -> list[Any]:
    """A table in blocks of so many rows, for a stage that is mapped over them.

    Blocks travel as columns. A table of polars has blocks of polars, one of Arrow those of Arrow.
    """
    if isinstance(table, pl.DataFrame):
        return list(table.iter_slices(rows))
    return [table.slice(first, rows) for first in range(0, table.num_rows, rows)]


def given_rows(given: Any, chain: Chain) -> pl.DataFrame | None:
    """The inputs of a run as a table, by number; None where they are not kept, or are blocks."""
    if isinstance(given, TableInputs):
        return given.rows()
    if isinstance(given, Mapping):  # of a run that goes on, by number
        return input_rows([given.get(number, {}) for number in range(max(given, default=-1) + 1)])
    if isinstance(given, list | tuple):
        return input_rows([named_input(chain, each, "inputs") for each in given])
    return None


def input_rows(inputs: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Inputs as a table. Raises UsageError for what has no column."""
    names = dict.fromkeys(name for given in inputs for name in given)
    return pl.DataFrame([_column(name, [given.get(name) for given in inputs]) for name in names])


def results_table(results: Sequence[Result], rows: pl.DataFrame | None) -> pl.DataFrame:
    """The outputs of the results that have one: behind the rows of their inputs, or, of blocks, as they are.

    Raises UsageError for what has no column.
    """
    done = [result for result in results if result.is_ok]
    values = [_plain(result.value) for result in done]
    if done and not isinstance(values[0], Mapping) and (first := as_frame(values[0])) is not None:
        others = zip(values[1:], done[1:], strict=True)
        frames = [first, *(_block(value, result.index) for value, result in others)]
        return pl.concat(frames, how="vertical_relaxed")
    made = _output_columns(values)
    if rows is None:
        return made
    kept = rows[[result.index for result in done]]
    clashing = {name: f"{OUTPUT}_{name}" for name in made.columns if name in kept.columns}
    return pl.concat([kept, made.rename(clashing)], how="horizontal")


def _block(value: Any, number: int) -> pl.DataFrame:
    if (frame := as_frame(value)) is None:
        raise UsageError(
            "the outputs before it are tables", field=f"output of input {number}", value=type(value).__name__,
            expected="a table",
        )  # fmt: skip
    return frame


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _output_columns(values: Sequence[Any]) -> pl.DataFrame:
    if values and all(isinstance(value, Mapping) for value in values):
        return input_rows(values)
    return pl.DataFrame([_column(OUTPUT, values)])


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    try:
        column = pl.Series(name, values, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        column = pl.Series(name, [None], dtype=pl.Object)
    if column.dtype == pl.Object:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        expected = "numbers, text, bytes, times, or lists and mappings of them, of one type"
        raise UsageError("has no type of a column", field=name, value=kinds, expected=expected)
    return column


def dataset_of(table: pl.DataFrame) -> Any:
    """A table as a dataset of Ray Data. Raises MissingExtra."""
    try:
        import pyarrow  # noqa: F401
        import ray.data
    except ImportError as missing:
        expected = "pip install 'trimtab[ray-data]'"
        raise MissingExtra("datasets need Ray Data and pyarrow", expected=expected) from missing
    return ray.data.from_arrow([block.to_arrow() for block in blocks(table, BLOCK_ROWS) or [table]])
