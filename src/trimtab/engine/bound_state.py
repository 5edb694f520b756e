"""States, views, plans and memories as kernels take them: tables of addresses."""

from __future__ import annotations

from trimtab.compiled.tables import Table, table_of
from trimtab.domain.view import Memory, Plan, View
from trimtab.engine.state import State

VIEW = table_of(View, is_read_ahead=True)  # policies that look at every node decide in less time
PLAN, MEMORY = table_of(Plan), table_of(Memory)
STATE = table_of(State, {View: VIEW, Memory: MEMORY})

MEMORIES = ("memories", "order_memories")


def listed(state: State, name: str) -> Table:
    """A list of memories as kernels take it."""
    return Table(MEMORY, getattr(state, name), listed=True)


def bind(state: State) -> Table:
    """The state as kernels take it."""
    lists = {name: listed(state, name) for name in MEMORIES}
    lists["views"] = Table(VIEW, state.views, listed=True)
    return Table(STATE, [state._replace(**lists)])
