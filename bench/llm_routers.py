"""`python -m bench.llm_routers`: routers of requests to language models; their page.

For each workload, number of replicas, cluster and pair of targets: the highest rate a replica at which 90 %
of all requests meet both targets, of the time to the first token and of the time between tokens. All policies
get the same requests. Saves bench/llm-routers.json after every cell; cells that are there are kept.

    python -m bench.llm_routers                   what the file lacks
    python -m bench.llm_routers --replicas 64     cells of so many replicas; the default is 4 and 16
    python -m bench.llm_routers --docs            only the page
"""

from __future__ import annotations

import ast
import functools
import gzip
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from bench.llm_routers_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, saved_figures, write_page
from bench.policy_cases import DATA
from bench.results import write_whole
from bench.startup import ROOT
from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import ENGINE_TYPE, LANGUAGE_MODEL, Engines
from trimtab.domain.options import Options
from trimtab.domain.requests import TRUTH, Prefixes, Requests
from trimtab.domain.view import UNLIMITED, new_work
from trimtab.engine.simulator import run as simulate
from trimtab.policies import find

RESULTS, PAGE = ROOT / "bench" / "llm-routers.json", ROOT / "docs" / "benchmarks" / "llm-routers.md"
SEEDS: Final = range(10, 15)  # the constants of llm-headroom were chosen on 0 and 1
GOODPUT, STEP = 0.9, 1.02
PER_REPLICA, LONG_PER_REPLICA = 2000, 750  # requests; so many of 12,000 tokens: the trace has 12,031 in all
MANY, PER_REPLICA_OF_MANY, LONG_PER_REPLICA_OF_MANY, SEEDS_OF_MANY = 64, 1000, 375, 3
LEAST, MOST = 0.05, 800.0  # requests per second and replica, between which the rate is searched
PUBLISHED: Final = (
    "round-robin",
    "least-connections",
    "power-of-d",
    "least-expected-completion",
    "prefix-affinity",
    "e2",
    "cache-aware",
    "scorers",
    "kv-cost",
    "predicted-latency(ttft_slo_s={ttft},tpot_slo_s={tpot})",
    "predicted-latency",
    "predicted-latency(pick=weighted)",
)
OURS: Final = "llm-headroom(ttft_s={ttft},tpot_s={tpot})"


class Targets(NamedTuple):
    """Seconds to the first token, and between tokens, that are good enough."""

    ttft_s: float
    tpot_s: float


TARGETS: Final = {"TTFT": Targets(1.0, 0.2), "TPOT": Targets(10.0, 0.05)}
LONG_TARGETS: Final = {"TTFT": Targets(10.0, 0.4), "TPOT": Targets(30.0, 0.1)}  # of prompts of 12,000 tokens


class Gpu(NamedTuple):
    """A roofline of Llama-3.1-8B in 16 bits on a GPU: 0.8 of the bandwidth, half of the dense operations."""

    gib_per_s: float
    teraflops: float
    memory_gb: float

    @property
    def step_s(self) -> float:
        """Seconds in which the weights are read once."""
        return 16e9 / (0.8 * self.gib_per_s * 1e9)

    @property
    def token_s(self) -> float:
        """Seconds of a prompt token."""
        return 16e9 / (0.5 * self.teraflops * 1e12)

    @property
    def kv_token_s(self) -> float:
        """Seconds in which a token of context is read: 128 KiB."""
        return 131_072 / (0.8 * self.gib_per_s * 1e9)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit beside the weights in 0.9 of the memory."""
        return int((0.9 * self.memory_gb - 17.0) * 1e9 / 131_072)


H100, L40S = Gpu(3350.0, 990.0, 80.0), Gpu(864.0, 362.0, 48.0)
BATCH, BUDGET, FIXED_S, ROW_S, SLOTS = 256, 2048, 0.002, 2e-5, 64


class Load(NamedTuple):
    """Requests in order: gaps before them, with the mean 1; tokens; and blocks of prompts."""

    gap: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    prefixes: Prefixes | None = None


def engines(gpus: Sequence[Gpu], context: float) -> Engines:
    """Engines of these GPUs. A request beside others is slowed down as decodes of so much context are."""
    rows, tokens = np.arange(BATCH + 1), np.arange(BUDGET + BATCH + 1)
    types, many = np.zeros(len(gpus), ENGINE_TYPE), len(gpus)
    dense, slowdown = np.zeros((many, len(tokens))), np.ones((many, len(rows)))
    sequence, attention = np.tile(ROW_S * rows, (many, 1)), np.zeros((many, len(rows)))
    per_context = np.zeros((many, len(rows)))
    for g, gpu in enumerate(gpus):
        kind = types[g]
        kind["service"], kind["batch_max"], kind["token_budget"] = LANGUAGE_MODEL, BATCH, BUDGET
        kind["kv_tokens"], kind["mixed_context_s"] = gpu.kv_tokens, gpu.kv_token_s
        kind["pair_s"] = 4 * 32 * 4096 / (0.5 * gpu.teraflops * 1e12)
        dense[g] = FIXED_S + np.maximum(gpu.step_s, gpu.token_s * tokens)
        per_context[g] = gpu.kv_token_s
        step_s = dense[g, rows] + sequence[g] + gpu.kv_token_s * context * rows
        slowdown[g, 1:] = step_s[1:] / step_s[1]
    unmeasured = np.zeros((many, 1)), np.zeros((many, len(rows), 1))
    return Engines(types, dense, sequence, attention, per_context, slowdown, *unmeasured)


def cluster_of(replicas: int, is_equal: bool, load: Load) -> Cluster:
    """H100s, or half of them L40S. The estimates are the seconds of a request alone."""
    gpus = (H100,) if is_equal else (H100, L40S)
    many, zone = len(gpus), np.zeros(replicas, np.int64)
    context = float(load.prompt.mean() + 0.5 * load.output.mean())
    served = engines(gpus, context)
    alone_s = load.output.mean() * served.dense_s[:, 1] + load.prompt.mean() * np.array(
        [gpu.token_s for gpu in gpus]
    )
    return Cluster(
        type_names=("h100", "l40s")[:many],
        node_names=tuple(f"node{j}" for j in range(replicas)),
        type_idx=np.arange(replicas) % many,
        slots=np.full(replicas, SLOTS),
        queue_max=np.full(replicas, UNLIMITED),
        zone_idx=zone,
        weight=(alone_s[0] / alone_s)[np.arange(replicas) % many],
        nic_gib_per_s=np.full(replicas, np.inf),
        memory_gib=np.full(many, np.inf),
        accelerators=np.ones(many),
        usd_per_hour=np.ones(many),
        class_names=("chat",),
        fixed_s=np.zeros((1, many)),
        unit_s=(alone_s / alone_s[0])[None, :],
        item_names=(),
        item_gib=np.zeros(0),
        item_is_adapter=np.zeros(0, np.uint8),
        load_s=np.zeros((0, many)),
        zone_names=("here",),
        rtt_s=np.zeros((1, 1)),
        zone_gib_per_s=np.array([np.inf]),
        prompt_token_units=np.array([H100.token_s]),
        engines=served,
    )


def expected_output(load: Load) -> np.ndarray:
    """For each request, the mean output so far of prompts in its quarter octave, [requests]."""
    octave = (4.0 * np.log2(np.maximum(load.prompt, 1))).astype(np.int64)
    sums, counts = np.zeros(octave.max() + 1), np.zeros(octave.max() + 1)
    found, total = np.zeros(len(octave)), 0.0
    for i, b in enumerate(octave):
        found[i] = sums[b] / counts[b] if counts[b] > 0 else (total / i if i > 0 else 256.0)
        sums[b] += load.output[i]
        counts[b] += 1
        total += load.output[i]
    return np.maximum(found, 1.0)


def requests_of(load: Load, cluster: Cluster) -> Requests:
    """The requests at a mean rate of one per second."""
    n, expected = len(load.gap), expected_output(load)
    rows, truth = new_work(n), np.zeros(n, TRUTH)
    rows["arrival_s"] = rows["run_arrival_s"] = np.cumsum(load.gap)
    rows["serial"], rows["deadline_s"], rows["parts_max"] = np.arange(n), np.inf, 1
    rows["model_idx"] = rows["adapter_idx"] = -1
    rows["input_tokens"], rows["output_tokens"] = load.prompt, np.rint(expected)
    step_s = FIXED_S + H100.step_s
    rows["units"] = load.prompt * H100.token_s + expected * step_s
    rows["estimate_s"] = rows["rank_s"] = cluster.best_estimate_s(rows["class_idx"], rows["units"])
    rows["key"] = np.arange(n) if load.prefixes is None else load.prefixes.block_idx[load.prefixes.first[:-1]]
    truth["units"], truth["factor"], truth["output_tokens"] = rows["units"], 1.0, load.output
    return Requests(rows, truth, prefixes=load.prefixes)


def at_rate(requests: Requests, rate: float) -> Requests:
    """The same requests at so many per second."""
    work = requests.work.copy()
    work["arrival_s"] /= rate
    work["run_arrival_s"] = work["arrival_s"]
    return Requests(work, requests.truth, prefixes=requests.prefixes)


class Served(NamedTuple):
    """Latencies of all requests, [requests] each."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    end_to_end_s: np.ndarray


def serve(cluster: Cluster, requests: Requests, policy: str, seed: int, mode: str = "compiled") -> Served:
    """Run one policy to the end."""
    state = simulate(cluster, requests, Options(), find(policy), seed=seed, mode=mode).state
    n, arrival_s = len(requests), requests.work["arrival_s"]
    first_s, finish_s = state.sequences["first_token_s"][:n], state.requests["finish_s"][:n]
    tpot_s = (finish_s - first_s) / np.maximum(requests.truth["output_tokens"] - 1, 1)
    return Served(first_s - arrival_s, tpot_s, finish_s - arrival_s)


def goodput(found: Served, targets: Targets) -> float:
    """Share of the requests that meet both targets."""
    return float(((found.ttft_s <= targets.ttft_s) & (found.tpot_s <= targets.tpot_s)).mean())


def highest_rate(is_good: Callable[[float], bool]) -> float:
    """The highest rate that is good, within `STEP`, between two that are searched by halving."""
    low, high = LEAST, MOST
    while high > low * STEP:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low


def _window(n: int, have: int, seed: int) -> np.ndarray:
    """Positions of n successive requests, from a place of the seed's on; a short trace begins again."""
    start = int(np.random.default_rng(seed).integers(0, have))
    return np.arange(start, start + n) % have


def _with_mean_1(gap: np.ndarray) -> np.ndarray:
    return gap / gap.mean()


@functools.cache
def _azure() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = pl.read_csv(DATA / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv.gz")
    at_s = table["TIMESTAMP"].str.slice(0, 26).str.to_datetime().dt.epoch("us").to_numpy() / 1e6
    gap = np.diff(at_s, prepend=at_s[0])
    return gap, table["ContextTokens"].to_numpy(), np.maximum(table["GeneratedTokens"].to_numpy(), 1)


def azure(n: int, seed: int) -> Load:
    """A window of the Azure conversation trace."""
    gap, prompt, output = _azure()
    rows = _window(n, len(gap), seed)
    return Load(_with_mean_1(gap[rows]), prompt[rows], output[rows])


def bursts(n: int, seed: int) -> Load:
    """The lengths of Azure's conversations in bursts as BurstGPT has them: Gamma gaps with a CV of 4."""
    _, prompt, output = _azure()
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(prompt), n)
    return Load(_with_mean_1(rng.gamma(1 / 16, 1.0, n)), prompt[rows], output[rows])


@functools.cache
def _mooncake() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[list[int]]]:
    with gzip.open(DATA / "mooncake_fast25" / "conversation_trace.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    gap = np.diff([row["timestamp"] / 1e3 for row in rows], prepend=0.0)
    prompt, output = (np.array([row[name] for row in rows]) for name in ("input_length", "output_length"))
    return gap, prompt, np.maximum(output, 1), [row["hash_ids"] for row in rows]


def mooncake(n: int, seed: int) -> Load:
    """A window of Mooncake's conversations, with their blocks of 512 tokens.

    More requests than the trace has come from several copies of it at once, each begun at another place and
    with blocks of its own: as many more conversations, and none that another copy has cached.
    """
    gap, prompt, output, ids = _mooncake()
    copies = -(-n // len(gap))
    start, each = int(_window(1, len(gap), seed)[0]), -(-n // copies)
    windows = (start + len(gap) * np.arange(copies)[:, None] // copies + np.arange(each)) % len(gap)
    at_s = np.cumsum(gap[windows], axis=1)
    order = np.argsort(at_s, axis=None, kind="stable")[:n]
    rows, copy = windows.reshape(-1)[order], order // each
    at_s, beyond = at_s.reshape(-1)[order], 1 + max(map(max, ids))
    chosen = [[of + beyond * block for block in ids[row]] for row, of in zip(rows, copy, strict=True)]
    gap = np.diff(at_s, prepend=at_s[0] - gap[rows[0]])
    _, numbers = np.unique(np.fromiter(itertools.chain.from_iterable(chosen), np.int64), return_inverse=True)
    first = np.concatenate([[0], np.cumsum([len(blocks) for blocks in chosen])])
    prefixes = Prefixes(numbers.astype(np.int32), first, prompt[rows].astype(float), 512.0)
    return Load(_with_mean_1(gap), prompt[rows], output[rows], prefixes)


@functools.cache
def _servegen() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Clients of a busy ten minutes, with their laws of gaps and lengths."""
    start_s = 36_000
    windows = pl.read_csv(DATA / "servegen" / "m-small-week1-trace.csv.gz", infer_schema_length=None).filter(
        (pl.col("start_s") == start_s) & (pl.col("rate_rps") > 0.0)
    )
    with gzip.open(DATA / "servegen" / "m-small-week1-dataset.json.gz", "rt") as file:
        lengths = json.load(file)
    at, known = str(start_s // 21_600 * 21_600), {}
    for client in windows["client_id"].cast(pl.String).to_list():
        laws = lengths.get(client, {}).get(at, {})
        read = {name: ast.literal_eval(laws.get(name, "{}")) for name in ("input_tokens", "output_tokens")}
        if all(read.values()):
            known[client] = {
                name: (np.array(list(law)), np.cumsum(list(law.values()))) for name, law in read.items()
            }
    rows = [
        row for row in windows.drop_nulls("pattern").iter_rows(named=True) if str(row["client_id"]) in known
    ]
    return rows, known


def servegen(n: int, seed: int) -> Load:
    """Requests of the clients of ServeGen's m-small: each with its own law of gaps and of lengths."""
    rows, known = _servegen()
    rng = np.random.default_rng(seed)
    total = sum(row["rate_rps"] for row in rows)
    found: list[np.ndarray] = []
    for row in rows:
        many = int(2 * n * row["rate_rps"] / total) + 8
        draw = rng.standard_gamma if row["pattern"] == "Gamma" else rng.weibull
        at_s = np.cumsum(row["scale"] * draw(row["shape"], many))
        tokens = []
        for name in ("input_tokens", "output_tokens"):
            values, below = known[str(row["client_id"])][name]
            tokens.append(values[np.searchsorted(below, rng.random(many) * below[-1])])
        found.append(np.stack([at_s, *tokens]))
    at_s, prompt, output = np.concatenate(found, axis=1)
    order = np.argsort(at_s, kind="stable")[:n]
    prompt, output = (np.maximum(tokens[order], 1).astype(np.int64) for tokens in (prompt, output))
    return Load(_with_mean_1(np.diff(at_s[order], prepend=0.0)), prompt, output)


WORKLOADS: Final[Mapping[str, Callable[[int, int], Load]]] = {
    "Azure conversation": azure,
    "Mooncake conversation": mooncake,
    "bursts as in BurstGPT": bursts,
    "ServeGen m-small": servegen,
}


LONG: Final = "Mooncake conversation"


def targets_of(workload: str, bound: str) -> Targets:
    """Those of the workload's prompts."""
    return (LONG_TARGETS if workload == LONG else TARGETS)[bound]


def measure(workload: str, replicas: int, is_equal: bool) -> dict[str, Any]:
    """For each pair of targets, highest rates a replica by policy, one for each seed; and latencies there."""
    found: dict[str, Any] = {bound: {"rates": {}, "at_best": {}} for bound in TARGETS}
    is_long, seeds = workload == LONG, SEEDS
    per_replica = LONG_PER_REPLICA if is_long else PER_REPLICA
    if replicas >= MANY:
        per_replica = LONG_PER_REPLICA_OF_MANY if is_long else PER_REPLICA_OF_MANY
        seeds = SEEDS[:SEEDS_OF_MANY]
    n = replicas * per_replica
    for seed in seeds:
        load = WORKLOADS[workload](n, seed)
        cluster = cluster_of(replicas, is_equal, load)
        requests = requests_of(load, cluster)
        for bound, cell in found.items():
            targets = targets_of(workload, bound)

            def served(policy: str, rate: float, targets: Targets = targets) -> Served:
                spec = policy.format(ttft=targets.ttft_s, tpot=targets.tpot_s)
                return serve(cluster, at_rate(requests, rate * replicas), spec, seed)  # noqa: B023 - called now

            for policy in (*PUBLISHED, OURS):
                rate = highest_rate(lambda r: goodput(served(policy, r), targets) >= GOODPUT)  # noqa: B023
                cell["rates"].setdefault(policy, []).append(round(rate, 4))
            if seed == SEEDS[0]:  # what the requests see at one rate
                rate = max(rates[0] for policy, rates in cell["rates"].items() if policy != OURS)
                for policy in cell["rates"]:
                    cell["at_best"][policy] = _seen(served(policy, rate), targets)
    return found


def _seen(found: Served, targets: Targets) -> dict[str, float]:
    quantiles = {f"ttft_p{q}_s": np.percentile(found.ttft_s, q) for q in (50, 90, 99, 100)}
    seen = {"goodput": goodput(found, targets), "ttft_mean_s": found.ttft_s.mean(), **quantiles}
    seen |= {"tpot_p90_s": np.percentile(found.tpot_s, 90), "end_to_end_mean_s": found.end_to_end_s.mean()}
    return {name: float(f"{value:.4g}") for name, value in seen.items()}


def run(replicas: Sequence[int]) -> None:
    """Measure what is missing, saving after every cell."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"cells": {}}
    for workload, many, is_equal in itertools.product(WORKLOADS, replicas, (True, False)):
        kind = "equal" if is_equal else "unequal"
        if f"{workload}, {many} {kind}, TTFT" in saved["cells"]:
            continue
        print(workload, many, kind, file=sys.stderr, flush=True)
        for bound, cell in measure(workload, many, is_equal).items():
            row = {"workload": workload, "replicas": many, "nodes": kind, "bound": bound}
            saved["cells"][f"{workload}, {many} {kind}, {bound}"] = {
                **row,
                **targets_of(workload, bound)._asdict(),
                **cell,
            }
        saved |= {"machine": machine(), "versions": versions()}
        write_whole(RESULTS, json.dumps(saved, ensure_ascii=False, allow_nan=False) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = page_parser("bench.llm_routers", __doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 16])
    arguments = parser.parse_args(given)
    if not arguments.docs:
        run(arguments.replicas)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
