"""States, views, plans and memories in the form that kernels take: tables of addresses.

Arrays for plain Python: memoryviews for interpreted kernels, NumPy columns for users' policies.

An interpreted kernel reads `nodes.in_flight[j]` fastest from a memoryview, with the same bits as compiled.
A policy in plain Python gets NumPy arrays with all their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.compiled.tables import Table, set_first_field, table_of
from trimtab.domain.cluster_state import read_only
from trimtab.domain.view import RANKED, Memory, Plan, View
from trimtab.engine.state import State

VIEW = table_of(View, is_read_ahead=True)  # speeds up policies that look at every node
PLAN, MEMORY = table_of(Plan), table_of(Memory)
STATE = table_of(State, {View: VIEW, Memory: MEMORY})
RANKING = set_first_field(RANKED)

MEMORIES = ("memories", "order_memories")


def listed(state: State, name: str) -> Table:
    """A list of memories as a table for kernels."""
    return Table(MEMORY, getattr(state, name), listed=True)


def bind(state: State) -> Table:
    """The state as a table for kernels."""
    lists = {name: listed(state, name) for name in MEMORIES}
    lists["views"] = Table(VIEW, state.views, listed=True)
    return Table(STATE, [state._replace(**lists)])


class Columns:
    """A one-dimensional record array by columns: `.field` is a column, `[i]` the record of row i."""

    def __init__(self, array: np.ndarray, column: Callable[[Any], Any] = memoryview) -> None:
        for name in array.dtype.names or ():
            setattr(self, name, column(array[name]))
        self._record: Any = None

    def __getitem__(self, row: int) -> Any:
        if self._record is None:
            self._record = record_of(self)
        self._record.row = row
        return self._record

    def __len__(self) -> int:
        return len(next(column for name, column in vars(self).items() if not name.startswith("_")))

    def __iter__(self) -> Iterator[Any]:
        """A record of its own for each row, with the row's position as `row`."""
        kind = type(record_of(self))
        for row in range(len(self)):
            record: Any = kind()
            record.row = row
            yield record

    if TYPE_CHECKING:  # at run time it would slow down every attribute access

        def __getattr__(self, name: str) -> Any: ...


class Ranking(Columns):
    """The ranking by columns; `ranking[i] = j` sets the node of candidate i."""

    node_idx: Any
    score: Any

    def __setitem__(self, i: Any, node_idx: Any) -> None:
        self.node_idx[i] = node_idx


def record_of(columns: Columns, row: int = 0) -> Any:
    """A record whose fields read and write the row given by its attribute `row`."""
    fields = {name: column for name, column in vars(columns).items() if not name.startswith("_")}
    record = type("Record", (), {"row": row, **{n: _cell(c) for n, c in fields.items()}})()
    return record


def _cell(column: Any) -> property:
    def read(record: Any) -> Any:
        return column[record.row]

    def write(record: Any, value: Any) -> None:
        column[record.row] = value

    return property(read, write)


def python_array(array: Any) -> Any:
    """An array of a state for interpreted kernels."""
    if array.dtype.names is None:
        return memoryview(array)
    return Columns(array) if array.ndim == 1 else tuple(python_array(row) for row in array)


def python_memory(own: Memory) -> Memory:
    """A memory for interpreted kernels."""
    return Memory(*(memoryview(array) for array in own))


def python_plan(plan: Plan) -> Plan:
    """A plan for interpreted kernels."""
    return Plan(*(python_array(array) for array in plan))


def python_view(view: View) -> View:
    """A view for interpreted kernels."""
    return _bound_view(view, memoryview)


def numpy_view(view: View) -> View:
    """A view for a policy in plain Python: read-only NumPy columns, and the context as a record."""
    return _bound_view(view, read_only)


def _bound_view(view: View, column: Callable[[Any], Any]) -> View:
    arrays: dict[str, Any] = {name: column(array) for name, array in view._asdict().items()}
    arrays |= {name: Columns(getattr(view, name), column) for name in ("nodes", "engines")}
    return View(**arrays | {"context": record_of(Columns(view.context))})


def numpy_ranking(ranking: np.ndarray) -> Ranking:
    """A ranking for a policy in plain Python."""
    return Ranking(ranking, np.asarray)


def numpy_plan(plan: Plan) -> Plan:
    """A plan for a policy in plain Python."""
    return Plan(*(read_only(a) if a.dtype.names is None else Columns(a, read_only) for a in plan))


def python_state(state: Any) -> Any:
    """A state for interpreted kernels. It shares the arrays of the original."""
    lists = {
        "views": [python_view(view) for view in state.views],
        "memories": [python_memory(own) for own in state.memories],
        "order_memories": [python_memory(own) for own in state.order_memories],
        "changed": tuple(memoryview(row) for row in state.changed),
        "ranking": Ranking(state.ranking),
    }
    arrays = {name: python_array(array) for name, array in state._asdict().items() if name not in lists}
    return type(state)(**arrays, **lists)
