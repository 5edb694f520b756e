"""Nodes as bits of words, by group, by state and by what they hold, kept up to date from the change log.

The nodes of a group (one type and slot count) lie in words of 60, in ascending order. For each state a node
is one bit of its word; likewise for each model or adapter (item) that nodes may hold. A node that is busy or
overdue has a key, by which its wait grows (see `wait_index`). Each word and each group has a lower bound of
the keys of its nodes in such a state: of those that hold an item, and of all. A change lowers bounds; who
visits all nodes of a word may set its bound anew. So bounds are exact where they are used.

Memory: ints = [header, words and nodes of groups, place of each node, node of each place, its state, words
of states, words of items, items of each node, the count of changes of these that is known, group of each
word, free nodes of each group that hold each item, words with free nodes]; floats = [cursor, keys,
bounds of words, bounds of groups]. About 16 × items bytes for each 60 nodes and state, and items / 8 + 40 for
each node.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.compiled.numba_extras import lowest_bit
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View, memory
from trimtab.policies.shared.selection import AT_ONCE
from trimtab.policies.shared.waits import OVERDUE_FRAC

FREE, BUSY, OVERDUE, FULL_BUSY, FULL_OVERDUE = range(5)  # full: without room, but up
_NONE = -1  # the state of a node that takes nothing

_BUILT, _GROUPS, _WORDS, _ITEMS, _CHUNKS, _STATES = range(6)
_AT_GROUP, _AT_PLACE, _AT_NODE, _AT_IS, _AT_STATE, _AT_HOLDERS, _AT_HELD = range(6, 13)
_AT_CHANGES, _AT_GROUP_OF, _AT_FREE, _AT_FREE_WORDS, _AT_KEY, _AT_BOUND, _AT_LEAST = range(13, 20)
CURSOR = 20  # first of some integers for `wait_index`
_HEADER = CURSOR + 5
_FIRST, _MANY, _TYPE, _SLOTS, _ROW = range(5)


def node_words(cluster: Cluster, states: int) -> Memory:
    """Memory for the first so many states; filled at the first refresh."""
    n, items, group_idx = cluster.n_nodes, len(cluster.item_gib), cluster.group_idx
    sizes = np.bincount(group_idx)
    many = -(-sizes // AT_ONCE)
    first, words, chunks = np.cumsum(many) - many, int(many.sum()), -(-items // AT_ONCE)
    order = np.argsort(group_idx, kind="stable")
    own = np.zeros(n, np.int64)  # position within its group
    own[order] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (first[group_idx] + own // AT_ONCE) * 64 + own % AT_ONCE
    node = np.full(words * 64, -1)
    node[place] = np.arange(n)
    example = order[np.cumsum(sizes) - sizes]
    groups = np.stack([first, many, cluster.type_idx[example], cluster.slots[example]], axis=1)
    header = np.zeros(_HEADER, np.int64)
    header[[_GROUPS, _WORDS, _ITEMS, _CHUNKS, _STATES]] = len(sizes), words, items, chunks, states
    tables = {
        _AT_GROUP: groups.reshape(-1),
        _AT_PLACE: place,
        _AT_NODE: node,
        _AT_IS: np.full(n, _NONE),
        _AT_STATE: np.zeros(states * words),
        _AT_HOLDERS: np.zeros(items * words),
        _AT_HELD: np.zeros(n * chunks),
        _AT_CHANGES: np.full(n, -1),
        _AT_GROUP_OF: np.repeat(np.arange(len(sizes)), many),
        _AT_FREE: np.zeros((items + 1) * len(sizes)),
        _AT_FREE_WORDS: np.zeros(-(-words // AT_ONCE)),
    }
    header[list(tables)] = _HEADER + np.cumsum([0, *(len(t) for t in tables.values())])[:-1]
    bounds = (states - 1) * (items + 1)
    header[_AT_KEY] = 1 + 4 * len(sizes)  # after numbers for `wait_index`
    header[_AT_BOUND] = header[_AT_KEY] + 64 * words
    header[_AT_LEAST] = header[_AT_BOUND] + bounds * words
    floats = np.full(int(header[_AT_LEAST]) + bounds * len(sizes), np.inf)
    return memory(ints=np.concatenate([header, *tables.values()]), floats=floats)


@helper(inline=True)
def n_groups(memory: Memory) -> int:
    """Number of node groups."""
    return int(memory.ints[_GROUPS])


@helper(inline=True)
def any_item(memory: Memory) -> int:
    """In place of an item: whatever a node holds."""
    return int(memory.ints[_ITEMS])


@helper(inline=True)
def type_of_group(memory: Memory, g: int) -> int:
    """Node type of a group."""
    return plain(memory.ints[memory.ints[_AT_GROUP] + _ROW * g + _TYPE])


@helper(inline=True)
def slots_of_group(memory: Memory, g: int) -> int:
    """Slots of each node of a group."""
    return int(memory.ints[plain(memory.ints[_AT_GROUP] + _ROW * g + _SLOTS)])


@helper(inline=True)
def first_word(memory: Memory, g: int) -> int:
    """First word of a group."""
    return plain(memory.ints[plain(memory.ints[_AT_GROUP] + _ROW * g + _FIRST)])


@helper(inline=True)
def n_words(memory: Memory, g: int) -> int:
    """Number of words of a group."""
    return int(memory.ints[plain(memory.ints[_AT_GROUP] + _ROW * g + _MANY)])


@helper(inline=True)
def in_state(memory: Memory, state: int, word: int) -> int:
    """The nodes of a word that are in a state."""
    ints = memory.ints
    return int(ints[plain(ints[_AT_STATE] + state * ints[_WORDS] + word)])


@helper(inline=True)
def holders(memory: Memory, item: int, word: int) -> int:
    """The nodes of a word that hold an item."""
    ints = memory.ints
    return int(ints[plain(ints[_AT_HOLDERS] + item * ints[_WORDS] + word)])


@helper(inline=True)
def node_of(memory: Memory, word: int, bit: int) -> int:
    """The node that is this bit of a word."""
    return plain(memory.ints[plain(memory.ints[_AT_NODE] + 64 * word + bit)])


@helper(inline=True)
def key_at(memory: Memory, word: int, bit: int) -> int:
    """Where in `floats` the key of a node is."""
    return plain(memory.ints[_AT_KEY] + 64 * word + bit)


@helper(inline=True)
def bounds_at(memory: Memory, state: int, item: int) -> int:
    """Where in `floats` the bounds of words begin, of nodes in a state that hold an item."""
    ints = memory.ints
    return plain(ints[_AT_BOUND] + ((state - 1) * (ints[_ITEMS] + 1) + item) * ints[_WORDS])


@helper(inline=True)
def least_at(memory: Memory, state: int, item: int, g: int) -> int:
    """Where in `floats` the bound of a group is, of nodes in a state that hold an item."""
    ints = memory.ints
    return plain(ints[_AT_LEAST] + ((state - 1) * (ints[_ITEMS] + 1) + item) * ints[_GROUPS] + g)


@helper(inline=True)
def n_free(memory: Memory, item: int, g: int) -> int:
    """How many nodes of a group have a slot free and hold an item."""
    ints = memory.ints
    return int(ints[plain(ints[_AT_FREE] + item * ints[_GROUPS] + g)])


@helper(inline=True)
def free_words(memory: Memory, block: int) -> int:
    """Which words of a block of 60 have nodes that are free, of any group."""
    ints = memory.ints
    return int(ints[plain(ints[_AT_FREE_WORDS] + block)])


@helper(inline=True)
def _note_free_word(memory: Memory, word: int) -> None:
    ints = memory.ints
    at, bit = plain(ints[_AT_FREE_WORDS] + word // AT_ONCE), 1 << (word % AT_ONCE)
    ints[at] = ints[at] | bit if in_state(memory, FREE, word) != 0 else ints[at] & ~bit


@helper(inline=True)
def _count_free(memory: Memory, j: int, word: int, by: int) -> None:
    """Node j becomes free (1), or is free no longer (−1)."""
    ints = memory.ints
    groups, at = ints[_GROUPS], ints[_AT_FREE] + ints[plain(ints[_AT_GROUP_OF] + word)]
    ints[plain(at + ints[_ITEMS] * groups)] += by
    for c in range(ints[_CHUNKS]):
        left = ints[plain(ints[_AT_HELD] + j * ints[_CHUNKS] + c)]
        while left != 0:
            ints[plain(at + (c * AT_ONCE + lowest_bit(left)) * groups)] += by
            left &= left - 1


@helper(inline=True)
def _lower_bounds(memory: Memory, j: int, word: int, state: int, item: int, key: float) -> None:
    floats = memory.floats
    bound = plain(bounds_at(memory, state, item) + word)
    if key < floats[bound]:
        floats[bound] = key
        least = least_at(memory, state, item, memory.ints[plain(memory.ints[_AT_GROUP_OF] + word)])
        if key < floats[least]:
            floats[least] = key


@helper(inline=True)
def _set_key(memory: Memory, j: int, word: int, bit: int, state: int, key: float) -> None:
    """Set the key of node j; no bound is above it."""
    ints = memory.ints
    memory.floats[key_at(memory, word, bit)] = key
    _lower_bounds(memory, j, word, state, ints[_ITEMS], key)
    for c in range(ints[_CHUNKS]):
        left = ints[plain(ints[_AT_HELD] + j * ints[_CHUNKS] + c)]
        while left != 0:
            _lower_bounds(memory, j, word, state, c * AT_ONCE + lowest_bit(left), key)
            left &= left - 1


@helper
def _take_items(view: View, memory: Memory, j: int, word: int, bit: int) -> None:
    """Note what node j holds."""
    ints = memory.ints
    ints[plain(ints[_AT_CHANGES] + j)] = view.resident_changes[j]
    for c in range(ints[_CHUNKS]):
        here, at = 0, plain(ints[_AT_HELD] + j * ints[_CHUNKS] + c)
        for k in range(min(AT_ONCE, ints[_ITEMS] - c * AT_ONCE)):
            here |= (1 if view.resident[j, plain(c * AT_ONCE + k)] != 0 else 0) << k
        left = here ^ ints[at]
        ints[at] = here
        while left != 0:
            item = c * AT_ONCE + lowest_bit(left)
            ints[plain(ints[_AT_HOLDERS] + item * ints[_WORDS] + word)] ^= 1 << bit
            left &= left - 1


@helper(inline=True)
def left_s(view: View, j: int) -> float:
    """The rest of node j's backlog; negative where it should be over."""
    nodes = view.nodes
    return float(nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j]))


@helper(inline=True)
def _state_of(view: View, memory: Memory, j: int) -> int:
    nodes = view.nodes
    if nodes.up[j] != 1:
        return _NONE
    is_full = nodes.room[j] <= 0
    if nodes.in_flight[j] < nodes.slots[j]:
        return _NONE if is_full else FREE
    state = OVERDUE if left_s(view, j) <= 0.0 else BUSY
    state += FULL_BUSY - BUSY if is_full else 0
    return state if state < memory.ints[_STATES] else _NONE


@helper(inline=True)
def is_overdue(state: int) -> bool:
    """Whether the backlog of nodes in this state should be over."""
    return state in (OVERDUE, FULL_OVERDUE)


@helper
def note_node(view: View, memory: Memory, j: int) -> None:
    """Bring node j up to date."""
    ints, nodes = memory.ints, view.nodes
    place, at_is = ints[plain(ints[_AT_PLACE] + j)], plain(ints[_AT_IS] + j)
    word, bit = plain(place >> 6), place & 63
    before, state = ints[at_is], _state_of(view, memory, j)
    takes_items = ints[_ITEMS] > 0 and ints[plain(ints[_AT_CHANGES] + j)] != view.resident_changes[j]
    if before == FREE and (state != FREE or takes_items):
        _count_free(memory, j, word, -1)
    if takes_items:
        _take_items(view, memory, j, word, bit)
    if state != before:
        ints[at_is] = state
        if before != _NONE:
            ints[plain(ints[_AT_STATE] + before * ints[_WORDS] + word)] &= ~(1 << bit)
        if state != _NONE:
            ints[plain(ints[_AT_STATE] + state * ints[_WORDS] + word)] |= 1 << bit
        if before == FREE or state == FREE:
            _note_free_word(memory, word)
    if state == FREE and (before != FREE or takes_items):
        _count_free(memory, j, word, 1)
    if state > FREE:
        key = OVERDUE_FRAC * nodes.outstanding_s[j]
        if not is_overdue(state):
            key = left_s(view, j) + nodes.slots[j] * view.context.now_s
        _set_key(memory, j, word, bit, state, key)


@helper(inline=True)
def refresh_nodes(view: View, memory: Memory) -> None:
    """Bring all that changed up to date. The first call of a memory takes all nodes as changed."""
    first = memory.ints[_BUILT] == 0
    memory.ints[_BUILT] = 1
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        note_node(view, memory, i if first else view.changed[i])
