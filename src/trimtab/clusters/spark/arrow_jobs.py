"""Calls over many items as one Spark job: blocks of Arrow rows, each a task on the host of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkContext

from trimtab.clusters.spark.placed_jobs import Placed, placed
from trimtab.clusters.spark.spark_driver import connect
from trimtab.errors import UsageError

BLOCK_ROWS: Final = 1024
COLUMN: Final = "item"


def arrow_map(
    sc: SparkContext,
    code: Callable[[Any], Any],
    items: Sequence[Any] | pa.Table,
    *,
    block_rows: int = BLOCK_ROWS,
    told: Callable[[Placed], object] | None = None,
    **placement: Any,
) -> Any:
    """The outputs of a function, in the order of the items.

    Of a list the function is called with each item, and outputs are a list; items and outputs have types that
    Arrow has. Of a table it is called with tables of `block_rows` rows, and outputs are a table of what it
    returns.

    Args:
        code: goes along by value if workers can't import it.
        told: called with the placement when the job has ended, to see its deviations or record it.
        placement: options of `placed`. Expected seconds are those of blocks; default: by their rows.

    Raises UsageError for what Arrow has no type for.
    """
    if block_rows < 1:
        raise UsageError("out of range", field="block_rows", value=block_rows, expected="from 1 on")
    is_table = isinstance(items, pa.Table)
    table: Any = items if is_table else pa.table({COLUMN: _column(items)})
    if table.num_rows == 0:
        return table if is_table else []
    blocks = [table.slice(k, block_rows) for k in range(0, table.num_rows, block_rows)]
    job = placed(
        sc,
        [_bytes_of(block) for block in blocks],
        **{"seconds": [block.num_rows / block_rows for block in blocks], **placement},
    )
    made = job.collect(_task(code, is_table=is_table))
    if told is not None:
        told(job)
    tables = [pa.ipc.open_stream(data).read_all() for data in made]
    if is_table:
        return pa.concat_tables(tables, promote_options="permissive")
    return [value for each in tables for value in each.column(COLUMN).to_pylist()]


class ArrowCall:
    """The code of a stage that hands its list, or its table, to Spark: `stage(ArrowCall(…), name=…)`.

    The worker that runs the stage is the driver of an application, which it starts at the first call and
    keeps. So such a stage has `concurrency=1`.

    Args:
        code: called in Spark's tasks, see `arrow_map`.
        master: as `connect` takes it, and so `python` and `settings`.
        options: of `arrow_map`.
    """

    def __init__(
        self,
        code: Callable[[Any], Any],
        master: str,
        *,
        python: str = "",
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._code, self._master, self._options = code, master, options
        self._python, self._settings = python, dict(settings or {})

    def __call__(self, items: Any) -> Any:
        """The outputs, in the order of the items."""
        sc = SparkContext._active_spark_context or connect(
            self._master, python=self._python, settings=self._settings
        )
        return arrow_map(sc, self._code, items, **self._options)


def _column(items: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(list(items))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"no column of Arrow: {error}", field="items", expected="values of one type of Arrow"
        ) from error


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _task(code: Callable[[Any], Any], *, is_table: bool) -> Callable[[bytes], bytes]:
    """What runs in a task. It goes along by value, and needs pyarrow there, but not this package."""
    column = COLUMN

    def call(data: bytes) -> bytes:
        import pyarrow as pa

        block = pa.ipc.open_stream(data).read_all()
        if is_table:
            made = code(block)
            if not isinstance(made, pa.Table):
                raise TypeError(f"the code returned {type(made).__name__}; expected a table of Arrow")
        else:
            made = pa.table({column: pa.array([code(item) for item in block.column(column).to_pylist()])})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_table(made)
        return bytes(sink.getvalue())

    return call
