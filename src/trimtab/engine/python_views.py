"""Arrays as plain Python sees them fastest: a memoryview per column, Python numbers in and out.

The same source then runs interpreted: `nodes.in_flight[j]` reads a record array in a kernel and a memoryview
here, and both give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.domain.view import Memory, Plan, View


class Columns:
    """A one-dimensional record array by columns: `.field` is a memoryview, `[i]` the record of row i."""

    def __init__(self, array: np.ndarray) -> None:
        for name in array.dtype.names or ():
            setattr(self, name, _flat(array[name]))
        self._record: Any = None

    def __getitem__(self, row: int) -> Any:
        if self._record is None:
            self._record = record_of(self)
        self._record.row = row
        return self._record

    if TYPE_CHECKING:  # at run time it would make every right name three times as slow

        def __getattr__(self, name: str) -> Any: ...


def record_of(columns: Columns, row: int = 0) -> Any:
    """A record that reads and writes whichever row its attribute `row` says."""
    fields = {name: column for name, column in vars(columns).items() if not name.startswith("_")}
    record = type("Record", (), {"row": row, **{n: _cell(c) for n, c in fields.items()}})()
    return record


def _cell(column: memoryview) -> property:
    def read(record: Any) -> Any:
        return column[record.row]

    def write(record: Any, value: Any) -> None:
        column[record.row] = value

    return property(read, write)


def _flat(array: Any) -> memoryview:
    return memoryview(array)


def _array(array: np.ndarray) -> Any:
    if array.dtype.names is None:
        return _flat(array)
    return Columns(array) if array.ndim == 1 else tuple(_array(row) for row in array)


def python_memory(own: Memory) -> Memory:
    """A memory."""
    return Memory(*(memoryview(array) for array in own))


def python_plan(plan: Plan) -> Plan:
    """A plan."""
    return Plan(*(_array(array) for array in plan))


def python_view(view: View) -> View:
    """A view."""
    host, nodes, *rest = view
    return View(record_of(Columns(host)), Columns(nodes), *(memoryview(array) for array in rest))


def python_state(state: Any) -> Any:
    """A whole state; it shares the arrays."""
    lists = {
        "views": [python_view(view) for view in state.views],
        "memories": [python_memory(own) for own in state.memories],
        "order_memories": [python_memory(own) for own in state.order_memories],
        "changed": tuple(memoryview(row) for row in state.changed),
    }
    arrays = {name: _array(array) for name, array in state._asdict().items() if name not in lists}
    return type(state)(**arrays, **lists)
