"""States, views, plans and memories in the form that kernels take: tables of addresses."""

from __future__ import annotations

from trimtab.compiled.tables import Table, set_first_field, table_of
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
