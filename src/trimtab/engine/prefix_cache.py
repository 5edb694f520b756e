"""What nodes keep of prompts: a cache of prefix blocks per node, and the work that a hit saves.

A prompt is a chain of blocks; a node that holds the first k of them need not compute these again. At service
start the blocks in a row from the first that the node holds are its hit: `prompt_token_units` of the class
for each of their tokens come off the request's work units. From then on the node holds the whole prompt, its
first block as the newest, so that the ends of prompts go before their beginnings. A failed node has lost all.

Policies that read `view.prefix_tokens` see what nodes hold at that very moment, however old telemetry is, as
an index that is told of every block would show; a prompt that waits at a node is not in it yet.
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
    """Rows behind the requests are parts of them, which have no prompt of their own."""
    return r + 1 < len(s.prompt_first)


@helper(inline=True)
def _cached_tokens(s: State, r: int, j: int) -> float:
    """Tokens of request r's prompt that node j holds from its beginning on."""
    if not _has_prompt(s, r):
        return 0.0
    first, last = s.prompt_first[r], s.prompt_first[r + 1]
    k = first
    while k < last and s.prefix_place[s.prompt_block[k], j] > 0:
        k += 1
    return min((k - first) * s.config.block_tokens[0], s.prompt_tokens[r])


@helper
def cached_units(s: State, r: int, j: int) -> float:
    """Work units of request r that node j would be spared now."""
    return _cached_tokens(s, r, j) * s.prompt_token_units[s.work.class_idx[r]]


@helper
def use_prefix(s: State, r: int, j: int) -> None:
    """Request r is served on node j, which holds its prompt from now on."""
    if not _has_prompt(s, r):
        return
    s.counts.prompt_tokens[0] += s.prompt_tokens[r]
    s.counts.cached_tokens[0] += _cached_tokens(s, r, j)
    for k in range(s.prompt_first[r + 1] - 1, s.prompt_first[r] - 1, -1):
        use(s.prefix_place, s.prefix_cache, s.prefix_entry, j, s.prompt_block[k])


@helper
def show_prefixes(s: State, r: int) -> None:
    """Let the policy see what each node has of request r's prompt."""
    for j in range(len(s.prefix_tokens)):
        s.prefix_tokens[j] = _cached_tokens(s, r, j)


@helper
def forget_prefixes(s: State, j: int) -> None:
    """Node j holds nothing of any prompt."""
    clear(s.prefix_place, s.prefix_cache, s.prefix_entry, j)
