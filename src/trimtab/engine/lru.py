"""Bounded least-recently-used caches, several in one set of arrays; those of prefixes and results.

Cache q holds at most `capacity` keys. `place[key, q]` is 1 + the position of the key's entry within the
cache, or 0 for an absent key. Entries are linked from the newest use to the oldest, so every operation is
O(1). The arrays are empty in a run without such caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Prefixes, Requests

CACHE = np.dtype(
    [("newest", "i4"), ("oldest", "i4"), ("length", "i4"), ("capacity", "i4"), ("begin", "i8")], align=True
)
CACHED = np.dtype([("key", "i4"), ("newer", "i4"), ("older", "i4")], align=True)


class Caches(NamedTuple):
    """Empty caches as arrays."""

    place: np.ndarray  # i4 [keys, caches]
    caches: np.ndarray  # CACHE [caches]
    entries: np.ndarray  # CACHED [caches × capacity]


def new_caches(count: int, capacity: int, keys: int) -> Caches:
    """`count` caches of equal capacity, for keys 0 … keys − 1."""
    caches = np.zeros(count, CACHE)
    caches["newest"] = caches["oldest"] = -1
    caches["capacity"], caches["begin"] = capacity, np.arange(count) * capacity
    return Caches(np.zeros((keys, count), "i4"), caches, np.zeros(count * capacity, CACHED))


@helper(inline=True)
def unlink(caches: Any, entries: Any, q: int, i: int) -> None:
    """Take entry i of cache q out of the order of use."""
    at = caches.begin[q] + i
    newer, older = entries.newer[at], entries.older[at]
    if newer < 0:
        caches.newest[q] = older
    else:
        entries.older[caches.begin[q] + newer] = older
    if older < 0:
        caches.oldest[q] = newer
    else:
        entries.newer[caches.begin[q] + older] = newer


@helper(inline=True)
def link_as_newest(caches: Any, entries: Any, q: int, i: int) -> None:
    """Make entry i of cache q, which is in no order, the one used last."""
    at, before = caches.begin[q] + i, caches.newest[q]
    entries.newer[at] = -1
    entries.older[at] = before
    if before < 0:
        caches.oldest[q] = i
    else:
        entries.newer[caches.begin[q] + before] = i
    caches.newest[q] = i


@helper
def use(place: Any, caches: Any, entries: Any, q: int, key: int) -> bool:
    """Make this key the newest of cache q; returns whether the cache held it before."""
    i = place[key, q] - 1
    if i >= 0:
        unlink(caches, entries, q, i)
        link_as_newest(caches, entries, q, i)
        return True
    i = caches.length[q]
    if i < caches.capacity[q]:
        caches.length[q] = i + 1
    else:
        i = caches.oldest[q]
        unlink(caches, entries, q, i)
        place[entries.key[caches.begin[q] + i], q] = 0
    entries.key[caches.begin[q] + i] = key
    place[key, q] = i + 1
    link_as_newest(caches, entries, q, i)
    return False


@helper
def clear(place: Any, caches: Any, entries: Any, q: int) -> None:
    """Empty cache q."""
    for i in range(caches.length[q]):
        place[entries.key[caches.begin[q] + i], q] = 0
    caches.length[q] = 0
    caches.newest[q] = -1
    caches.oldest[q] = -1


def reuse_arrays(
    cluster: Cluster, requests: Requests, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    """Fields of the state. Switches on in `config` the caches for which the requests have data."""
    are_kept = options.prefix_blocks > 0 or cluster.engines is not None
    return {
        **_prefix_arrays(cluster, requests.prefixes if are_kept else None, options, config),
        **_result_arrays(requests.content_idx if options.results_max else None, options, config),
    }


def _prefix_arrays(
    cluster: Cluster, prefixes: Prefixes | None, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    if prefixes is None or prefixes.n_blocks == 0:
        block, first, tokens = np.zeros(0, "i4"), np.zeros(0, "i8"), np.zeros(0)
        place, caches, entries = new_caches(0, 0, 0)
    else:
        config["prefix_blocks"] = max(options.prefix_blocks, 1)  # engines keep blocks in their own memory
        config["block_tokens"] = prefixes.block_tokens
        block, first = prefixes.block_idx.astype("i4"), prefixes.first.astype("i8")
        tokens = prefixes.prompt_tokens.astype("f8")
        place, caches, entries = new_caches(cluster.n_nodes, options.prefix_blocks, prefixes.n_blocks)
    units = cluster.prompt_token_units
    return {
        "prompt_block": block,
        "prompt_first": first,
        "prompt_tokens": tokens,
        "prompt_token_units": np.zeros(len(cluster.class_names)) if units is None else units.astype("f8"),
        "prefix_place": place,
        "prefix_cache": caches,
        "prefix_entry": entries,
    }


def _result_arrays(
    content_idx: np.ndarray | None, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    if content_idx is None or content_idx.max(initial=-1) < 0:
        content_idx, (place, caches, entries) = np.zeros(0, "i4"), new_caches(0, 0, 0)
    else:
        config["results_max"] = options.results_max
        place, caches, entries = new_caches(1, options.results_max, int(content_idx.max()) + 1)
    return {
        "content_idx": content_idx.astype("i4"),
        "result_place": place,
        "result_cache": caches,
        "result_entry": entries,
    }
