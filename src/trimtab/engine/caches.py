"""The arrays of prefix caches and the result cache. They are empty in a run without such caches."""

from __future__ import annotations

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Prefixes, Requests
from trimtab.engine.lru import new_caches


def reuse_arrays(
    cluster: Cluster, requests: Requests, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    """Fields of the state. Switches on in `config` the caches for which the requests have data."""
    return {
        **_prefix_arrays(cluster, requests.prefixes if options.prefix_blocks else None, options, config),
        **_result_arrays(requests.content_idx if options.results_max else None, options, config),
    }


def _prefix_arrays(
    cluster: Cluster, prefixes: Prefixes | None, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    if prefixes is None or prefixes.n_blocks == 0:
        block, first, tokens = np.zeros(0, "i4"), np.zeros(0, "i8"), np.zeros(0)
        place, caches, entries = new_caches(0, 0, 0)
    else:
        config["prefix_blocks"], config["block_tokens"] = options.prefix_blocks, prefixes.block_tokens
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
