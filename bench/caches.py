"""`python -m bench.caches`: hit rates of the hosts' caches, beside the best possible; its page.

Requests come one at a time to one node; what they ask for is drawn by Zipf's law. Saves bench/caches.json;
`--docs` only writes the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.caches_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from bench.work import slots
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Eviction, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.simulator import run
from trimtab.engine.state import State
from trimtab.experiments.bounds.caching import belady_hits, feasible_hits, volume_bound_hits
from trimtab.experiments.scenario.build.request_arrays import drawn_prefixes
from trimtab.experiments.scenario.spec.shared_types import choose, zipf_fractions
from trimtab.policies.load_aware.least_expected_completion import LeastExpectedCompletion

RESULTS, PAGE = ROOT / "bench" / "caches.json", ROOT / "docs" / "benchmarks" / "caches.md"
SEEDS, USES, ITEMS = 10, 10_000, 200
EXPONENTS, ROOMS = (0.6, 0.9, 1.2), (0.05, 0.1, 0.2)  # of Zipf's law; of all items, by size
SIZE_SIGMA, LARGEST = 1.0, 8.0  # of the logarithm of sizes, where these differ; all fit in the least room
FEW = 2_000  # requests below which nothing is compiled
APART_S = 1e4  # between requests: each finds the others gone
SHARED_BLOCKS, OWN_BLOCKS, BLOCK_TOKENS = 4, 2, 512.0


@dataclasses.dataclass(frozen=True)
class Pinned(Policy):
    """The most popular items for their size are placed on the node, as many as leave room for any other."""

    plan_period_s: float = 1e12
    room_frac: float = 0.1
    exponent: float = 0.9

    def init(self, cluster: Any) -> Any:
        """As least-expected-completion."""
        return LeastExpectedCompletion().init(cluster)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        """Always the same."""
        size = view.item_gib
        placement, left = np.zeros(view.resident.shape, "u1"), self.room_frac * size.sum() - size.max()
        for m in np.argsort(-zipf_fractions(len(size), self.exponent) / size, kind="stable"):
            if size[m] <= left:
                placement[0, m] = 1
                left -= size[m]
        return empty_plan()._replace(placement=placement)

    dispatch = staticmethod(LeastExpectedCompletion.dispatch)


def one_node(size: np.ndarray, room_frac: float) -> Cluster:
    """A node of one slot with room for this share of all items, each a second to load."""
    n = len(size)
    cluster = slots(2, 2).cluster
    first = {name: getattr(cluster, name)[:1] for name in ("slots", "queue_max", "zone_idx", "weight")}
    return dataclasses.replace(
        cluster,
        node_names=cluster.node_names[:1],
        type_idx=cluster.type_idx[:1],
        nic_gib_per_s=cluster.nic_gib_per_s[:1],
        **{**first, "slots": np.ones(1, np.int64)},
        memory_gib=np.full(cluster.n_types, room_frac * size.sum()),
        item_names=tuple(f"item{m}" for m in range(n)),
        item_gib=size,
        item_is_adapter=np.zeros(n, np.uint8),
        load_s=np.ones((n, cluster.n_types)),
    )


def asked(n: int) -> Requests:
    """Requests of one unit, far apart."""
    given = slots(2, n).requests
    given.work["arrival_s"] = np.arange(1, n + 1) * APART_S
    return given


def served(cluster: Cluster, requests: Requests, options: Options, policy: Policy) -> State:
    """The end of a run."""
    mode = "interpreted" if len(requests) < FEW else "compiled"
    state: State = run(cluster, requests, options, Decider.of(policy), mode=mode).state
    return state


def model_hits(
    keys: np.ndarray, size: np.ndarray, room_frac: float, eviction: Eviction, policy: Policy
) -> int:
    """Uses that load nothing."""
    requests = asked(len(keys))
    requests.work["model_idx"] = keys
    rows = served(one_node(size, room_frac), requests, Options(eviction=eviction), policy).requests
    wait_s = rows["service_start_s"] - rows["start_s"]
    return int((wait_s[: len(keys)] == 0.0).sum())


def models(keys: np.ndarray, size: np.ndarray, room_frac: float, exponent: float) -> dict[str, int]:
    """Hits of each way to evict, and the bounds."""
    any_policy, capacity = LeastExpectedCompletion(), room_frac * size.sum()
    pinned = Pinned(room_frac=room_frac, exponent=exponent)
    found = {
        "LRU": model_hits(keys, size, room_frac, Eviction.LRU, any_policy),
        "GreedyDual-Size": model_hits(keys, size, room_frac, Eviction.GREEDY_DUAL_SIZE, any_policy),
        "pinned": model_hits(keys, size, room_frac, Eviction.PLAN_PINNED, pinned),
        "feasible": feasible_hits(keys, size, capacity),
        "bound": volume_bound_hits(keys.tolist(), size, capacity),
    }
    if np.ptp(size) == 0.0:
        found["Belady"] = belady_hits(keys.tolist(), round(capacity))
    return found


def results(keys: np.ndarray, room: int) -> dict[str, int]:
    """Requests answered by a kept result, of those asked for by content."""
    requests = dataclasses.replace(asked(len(keys)), content_idx=keys.astype(np.int32))
    end = served(slots(2, 2).cluster, requests, Options(results_max=room), LeastExpectedCompletion())
    return {"LRU": int(end.counts["result_hits"][0]), "Belady": belady_hits(keys.tolist(), room)}


def prefixes(keys: np.ndarray, room: int) -> dict[str, int]:
    """Blocks found of prompts that begin with blocks which others share, and end with blocks of their own."""
    shared = np.full(int(keys.max()) + 1, SHARED_BLOCKS * BLOCK_TOKENS)
    tokens = np.full(len(keys), (SHARED_BLOCKS + OWN_BLOCKS) * BLOCK_TOKENS)
    drawn = drawn_prefixes(keys, shared, tokens, BLOCK_TOKENS)
    requests = dataclasses.replace(asked(len(keys)), prefixes=drawn)
    options = Options(prefix_blocks=room)
    end = served(one_node(np.ones(1), 1.0), requests, options, LeastExpectedCompletion())
    hits = round(float(end.counts["cached_tokens"][0]) / BLOCK_TOKENS)
    return {"LRU": hits, "Belady": belady_hits(drawn.block_idx.tolist(), room)}


def measure(seeds: int, uses: int) -> Iterator[dict[str, Any]]:
    """One row for each cache, exponent and room: shares of uses that are hits, [seeds] each."""
    for exponent in EXPONENTS:
        for room_frac in ROOMS:
            found: dict[str, list[dict[str, float]]] = {}
            for seed in range(seeds):
                pick = np.random.default_rng(seed)
                keys = choose(pick, zipf_fractions(ITEMS, exponent), uses)
                size = np.minimum(pick.lognormal(0.0, SIZE_SIGMA, ITEMS), LARGEST)
                room = round(room_frac * ITEMS)
                blocks = uses * (SHARED_BLOCKS + OWN_BLOCKS)
                rows = {
                    "models of one size": (models(keys, np.ones(ITEMS), room_frac, exponent), uses),
                    "models of many sizes": (models(keys, size, room_frac, exponent), uses),
                    "results": (results(keys, room), uses),
                    "prefixes": (prefixes(keys, room * SHARED_BLOCKS), blocks),
                }
                for cache, (hits, n) in rows.items():
                    found.setdefault(cache, []).append({name: hit / n for name, hit in hits.items()})
            for cache, of_seeds in found.items():
                hit_frac = {name: [round(row[name], 5) for row in of_seeds] for name in of_seeds[0]}
                yield {"cache": cache, "zipf": exponent, "room_frac": room_frac, "hit_frac": hit_frac}
            print(exponent, room_frac, {cache: of_seeds[0] for cache, of_seeds in found.items()}, flush=True)


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.caches", __doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--uses", type=int, default=USES)
    given = parser.parse_args()
    if not given.docs:
        saved = {"machine": machine(), "versions": versions(), "rows": list(measure(given.seeds, given.uses))}
        save_figures(RESULTS, saved)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
