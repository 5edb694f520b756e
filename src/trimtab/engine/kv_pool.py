"""Blocks of prompts in the KV memory of an engine: needed by rows of its batch, or kept for later prompts.

Automatic prefix caching as in vLLM (docs/design/prefix_caching.md): a block of a prompt is found by its
number, which stands for all tokens up to its end. Rows count the blocks that they need; a block that no row
needs stays until its room is needed. Then the block that was left longest ago goes; of one prompt, its last
one first. A hit ends one token before the prompt does. Blocks of answers are not kept: they have no number.

`prefix_place[block, node]` is 1 + the position of the block's entry, 0 for none, as in `prefix_cache`.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.engine.lru import link_as_newest, unlink
from trimtab.engine.state import State


@helper(inline=True)
def _block_tokens(s: State) -> int:
    return int(s.config.block_tokens[0])


@helper(inline=True)
def n_blocks(s: State, r: int) -> int:
    """Whole blocks of row r's prompt; 0 for a row whose prompt is not known by blocks."""
    if len(s.pools) == 0 or r + 1 >= len(s.prompt_first):
        return 0
    many = s.prompt_first[r + 1] - s.prompt_first[r]
    return int(min(many, s.work.input_tokens[r] // _block_tokens(s)))


@helper(inline=True)
def _entry(s: State, r: int, k: int, j: int) -> int:
    """Entry of block k of row r on node j; -1 = none."""
    i = s.prefix_place[s.prompt_block[s.prompt_first[r] + k], j]
    return int(s.pools.begin[j] + i - 1) if i > 0 else -1


@helper
def cached_tokens(s: State, r: int, j: int) -> int:
    """Tokens of row r's prompt that engine j holds and need not read again; one is always read."""
    k, most = 0, n_blocks(s, r)
    if most > 0:
        most = min(most, (s.sequences.prompt[r] - 1) // _block_tokens(s))
    while k < most and _entry(s, r, k, j) >= 0:
        k += 1
    return int(k * _block_tokens(s))


@helper
def added_tokens(s: State, r: int, j: int) -> int:
    """Tokens by which `used` grows if row r joins: what it holds alone, and blocks that no row needs yet."""
    many = n_blocks(s, r)
    added = s.sequences.prompt[r] + 1 - many * _block_tokens(s)
    for k in range(many):
        i = _entry(s, r, k, j)
        if i < 0 or s.pool_users[i] == 0:
            added += _block_tokens(s)
    return int(added)


@helper
def evict(s: State, j: int, room: int) -> None:
    """Let blocks that no row needs go until so many tokens are free, or there are none."""
    e, pool = s.engines, s.pools
    while e.kept[j] > 0 and e.used[j] + e.kept[j] + room > s.engine_types.kv_tokens[s.nodes.type_idx[j]]:
        i = pool.oldest[j]
        unlink(s.pools, s.pool_entry, j, i)
        at = pool.begin[j] + i
        s.prefix_place[s.pool_entry.key[at], j] = 0
        s.pool_entry.older[at] = pool.free[j]
        pool.free[j] = i
        e.kept[j] -= _block_tokens(s)


@helper
def hold(s: State, r: int, j: int) -> None:
    """Row r joins the batch: it holds the blocks of its prompt, and the rest of it alone."""
    many, pool, size = n_blocks(s, r), s.pools, 0
    s.sequences.blocks[r] = many
    if many > 0:
        size = _block_tokens(s)
    for k in range(many):
        i = _entry(s, r, k, j)
        if i >= 0 and s.pool_users[i] == 0:
            unlink(s.pools, s.pool_entry, j, i - pool.begin[j])
            s.engines.kept[j] -= size
            s.engines.used[j] += size
            s.pool_users[i] = 1
        elif i >= 0:
            s.pool_users[i] += 1
    evict(s, j, _missing(s, r, j) * size + s.sequences.prompt[r] + 1 - many * size)
    for k in range(many):
        if _entry(s, r, k, j) < 0:
            _add(s, s.prompt_block[s.prompt_first[r] + k], j)
            s.engines.used[j] += size
    s.engines.used[j] += s.sequences.prompt[r] + 1 - many * size


@helper
def _missing(s: State, r: int, j: int) -> int:
    missing = 0
    for k in range(s.sequences.blocks[r]):
        if _entry(s, r, k, j) < 0:
            missing += 1
    return missing


@helper
def _add(s: State, block: int, j: int) -> None:
    pool = s.pools
    i = pool.free[j]
    if i >= 0:
        pool.free[j] = s.pool_entry.older[pool.begin[j] + i]
    else:
        i = pool.length[j]
        pool.length[j] = i + 1
    at = pool.begin[j] + i
    s.pool_entry.key[at] = block
    s.pool_users[at] = 1
    s.prefix_place[block, j] = i + 1


@helper
def let_go(s: State, r: int, j: int, have: int) -> None:
    """Row r, which holds so many tokens, leaves the batch. The first block of its prompt goes last."""
    many = s.sequences.blocks[r]
    s.sequences.blocks[r] = 0
    if many == 0:
        s.engines.used[j] -= have
        return
    size = _block_tokens(s)
    s.engines.used[j] -= have - many * size
    for k in range(many - 1, -1, -1):
        i = _entry(s, r, k, j)
        s.pool_users[i] -= 1
        if s.pool_users[i] == 0:
            link_as_newest(s.pools, s.pool_entry, j, i - s.pools.begin[j])
            s.engines.used[j] -= size
            s.engines.kept[j] += size


@helper
def forget_blocks(s: State, j: int) -> None:
    """Node j has failed: its memory is empty."""
    if len(s.pools) == 0:
        return
    for i in range(s.pools.length[j]):
        at = s.pools.begin[j] + i
        if s.prefix_place[s.pool_entry.key[at], j] == i + 1:
            s.prefix_place[s.pool_entry.key[at], j] = 0
        s.pool_users[at] = 0
    s.pools.length[j] = 0
    s.pools.newest[j] = s.pools.oldest[j] = s.pools.free[j] = -1
    s.engines.kept[j] = 0
