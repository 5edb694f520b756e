"""Prefix caches: one cache of prompt blocks per node, and the work that a hit saves.

A prompt is a chain of blocks. A node that holds the first k blocks does not compute these again. The hit of a
request at service start is the longest run of its first blocks that the node holds. Each token of the hit
removes `prompt_token_units` of the class from the request's work units. The node then holds the whole prompt,
with the first block as the newest, so that the cache evicts ends of prompts before their beginnings. A failed
node loses its cache.

Policies that read `view.prefix_tokens` see the present contents of the caches, even with old telemetry. This
models an index that receives every block. A prompt that waits at a node is not in the cache yet.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.engine.lru import clear, use
from trimtab.engine.state import State


@helper(inline=True)
def has_prefixes(s: State) -> bool:
    """Whether nodes have prefix caches, and requests have blocks."""
    return s.config.prefix_blocks[0] > 0


@helper(inline=True)
def _has_prompt(s: State, r: int) -> bool:
    """Whether row r has a prompt: the rows behind the requests are parts, which have none."""
    return r + 1 < len(s.prompt_first)


@helper(inline=True)
def _cached_tokens(s: State, r: int, j: int) -> float:
    """Tokens of the longest beginning of request r's prompt that node j holds."""
    if not _has_prompt(s, r):
        return 0.0
    first, last = s.prompt_first[r], s.prompt_first[r + 1]
    k = first
    while k < last and s.prefix_place[s.prompt_block[k], j] > 0:
        k += 1
    return min((k - first) * s.config.block_tokens[0], s.prompt_tokens[r])


@helper
def cached_units(s: State, r: int, j: int) -> float:
    """Work units of request r that a hit on node j would save now."""
    return _cached_tokens(s, r, j) * s.prompt_token_units[s.work.class_idx[r]]


@helper
def use_prefix(s: State, r: int, j: int) -> None:
    """Store the prompt of request r, which starts on node j, in the node's cache."""
    if not _has_prompt(s, r) or s.prefix_cache.capacity[j] == 0:
        return
    s.counts.prompt_tokens[0] += s.prompt_tokens[r]
    s.counts.cached_tokens[0] += _cached_tokens(s, r, j)
    for k in range(s.prompt_first[r + 1] - 1, s.prompt_first[r] - 1, -1):
        use(s.prefix_place, s.prefix_cache, s.prefix_entry, j, s.prompt_block[k])


@helper
def show_prefixes(s: State, r: int, d: int) -> None:
    """Write the tokens of request r's prompt, in all and those cached on each node, for dispatcher d."""
    s.contexts.prompt_tokens[d] = s.prompt_tokens[r] if _has_prompt(s, r) else 0.0
    for j in range(len(s.prefix_tokens)):
        s.prefix_tokens[j] = _cached_tokens(s, r, j)


@helper
def forget_prefixes(s: State, j: int) -> None:
    """Empty the prefix cache of node j."""
    clear(s.prefix_place, s.prefix_cache, s.prefix_entry, j)
