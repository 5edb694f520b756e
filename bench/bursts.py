"""`python -m bench.bursts`: policies under bursts, on a chat cluster that has loaded nothing yet; its page.

    python -m bench.bursts            what bench/bursts.json lacks, saved after every case
    python -m bench.bursts --anew     everything
    python -m bench.bursts --docs     only the page

Recorded traces are read from ../shared/data beside the checkout; those that are not there are left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from bench.bursts_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, saved_figures, write_page
from bench.policies import rounded
from bench.policy_cases import DATA
from bench.results import write_whole
from bench.startup import ROOT
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario import Scenario, load_scenario

RESULTS, PAGE = ROOT / "bench" / "bursts.json", ROOT / "docs" / "benchmarks" / "bursts.md"
CHAT = ROOT / "bench" / "bursts.yaml"
REQUESTS, SEEDS, LOADS = 3_000, 3, (0.7, 1.0)
FIXED: Final = (
    "least-connections",
    "least-expected-wait",
    "round-robin",
    "weighted-round-robin",
    "least-expected-completion",
    "cost-index",
    "sampled-completion",
    "locality",
)
POLICIES: Final = (*FIXED, "late-binding", "auto")
METRICS: Final = ("completion_mean_s", "completion_p99_s", "rejected_frac")
Gaps = Callable[[np.random.Generator, int], np.ndarray]


def _hyperexponential(cv: float) -> Gaps:
    """Two phases of balanced means: the share p of the gaps has the rate 2p, the others 2(1 − p)."""
    p = 0.5 * (1.0 + np.sqrt((cv**2 - 1.0) / (cv**2 + 1.0)))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        share = np.where(rng.random(n) < p, p, 1.0 - p)
        return rng.exponential(0.5 / share)

    return draw


def _batches(mean: float) -> Gaps:
    """Pareto batches (exponent 1.5) with exponential gaps between; a batch takes half a gap at most."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        gaps = rng.exponential(0.5 / mean, n)
        ends = np.cumsum(1 + (0.5 * mean * rng.pareto(1.5, n)).astype(np.int64))
        ends = ends[ends < n]
        gaps[ends] += rng.exponential(mean, len(ends))
        return gaps

    return draw


GENERATED: Final[Mapping[str, Any]] = {
    "steady (Poisson)": {"process": "poisson", "rate_per_s": 5.53},
    "Gamma, CV 5": {"process": "gamma", "rate_per_s": 5.53, "cv": 5.0},
    "Gamma, CV 13": {"process": "gamma", "rate_per_s": 5.53, "cv": 13.0},
    "Weibull, CV 8": lambda rng, n: rng.weibull(0.3, n),
    "hyperexponential, CV 13": _hyperexponential(13.0),
    "Pareto batches of 100": _batches(100.0),
    "MMPP, bursts of 300": {"process": "mmpp", "rates_per_s": [0.5, 50.0], "sojourns_s": [60.0, 6.0]},
    "MMPP, bursts of 1,500": {"process": "mmpp", "rates_per_s": [0.5, 50.0], "sojourns_s": [300.0, 30.0]},
}
RECORDED: Final = {
    "Azure conversation": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
    "Mooncake conversation": "mooncake_fast25/conversation_trace.jsonl.gz",
}
SERVEGEN: Final = "servegen/mm-image-trace.csv.gz"


def _chat(load: float) -> dict[str, Any]:
    return load_scenario(CHAT).with_overrides(load=load).model_dump(mode="json", exclude_defaults=True)


def scenarios(load: float, folder: Path) -> Iterator[tuple[str, Scenario]]:
    """Every workload on the cluster and classes of `bursts.yaml`; arrivals of our own are written first."""
    for name, arrival in GENERATED.items():
        parts = _chat(load)
        parts["workload"]["generate"]["requests"] = REQUESTS
        if callable(arrival):
            yield name, _traced(parts, folder, np.cumsum(arrival(np.random.default_rng(1), REQUESTS)))
            continue
        parts["workload"]["generate"]["arrival"] = arrival
        yield name, Scenario.model_validate(parts)
    for name, file in RECORDED.items():
        if (DATA / file).exists():
            yield name, _recorded(_chat(load), DATA / file)
    if (DATA / SERVEGEN).exists():
        yield "ServeGen, clients of an hour", _traced(_chat(load), folder, _of_clients(DATA / SERVEGEN))


def _recorded(parts: dict[str, Any], file: Path) -> Scenario:
    return _with_trace(parts, {"file": str(file), "options": {"limit": REQUESTS}})


def _with_trace(parts: dict[str, Any], trace: dict[str, Any]) -> Scenario:
    kept = {name: value for name, value in parts["workload"].items() if name != "generate"}
    return Scenario.model_validate({**parts, "workload": {**kept, "trace": trace}})


def _traced(parts: dict[str, Any], folder: Path, arrival_s: np.ndarray) -> Scenario:
    """These arrivals, with sizes as the quantiles of `bursts.yaml` have them."""
    rng, fields = np.random.default_rng(2), parts["workload"]["generate"]["mix"]["chat"]["size"]
    size = np.zeros(len(arrival_s))
    for name, spec in fields["sum"].items():
        at = np.array(sorted((float(q), float(value)) for q, value in spec["values"].items()))
        drawn = np.interp(rng.random(len(size)), at[:, 0], at[:, 1])
        size += fields.get("weights", {}).get(name, 1.0) * drawn
    file = folder / f"{len(list(folder.iterdir()))}.csv"
    pl.DataFrame({"arrival_s": arrival_s, "size": size}).write_csv(file)
    return _with_trace(parts, {"file": str(file)})


def _of_clients(file: Path) -> np.ndarray:
    """`REQUESTS` arrivals of the first hour: in each window, each client's gaps follow its law there."""
    rng, found = np.random.default_rng(3), []
    windows = pl.read_csv(file).filter((pl.col("start_s") < 3600.0) & (pl.col("rate_rps") > 0.0))
    for row in windows.drop_nulls("pattern").iter_rows(named=True):
        n = int(2 * 600 * row["rate_rps"]) + 8
        draw = rng.gamma(row["shape"], 1.0, n) if row["pattern"] == "Gamma" else rng.weibull(row["shape"], n)
        at_s = np.cumsum(row["scale"] * draw)
        found.append(row["start_s"] + at_s[at_s < 600.0])
    return np.sort(np.concatenate(found))[:REQUESTS]


def measure(scenario: Scenario) -> dict[str, Any]:
    """Values by policy and metric, one for each seed."""
    found = compare(scenario, POLICIES, SEEDS, sweep=(), mode="compiled", jobs=1)
    return {
        result.policy: {name: [rounded(run.metrics[name]) for run in result.runs] for name in METRICS}
        for result in found.results
    }


def run(*, anew: bool) -> None:
    """Measure what is missing, saving after every case."""
    cases = {} if anew or not RESULTS.exists() else json.loads(RESULTS.read_text(encoding="utf-8"))["cases"]
    with tempfile.TemporaryDirectory() as folder:
        for load in LOADS:
            for name, scenario in scenarios(load, Path(folder)):
                if (key := f"{name}, load {load:g}") not in cases:
                    print(key, file=sys.stderr, flush=True)
                    cases[key] = {"load": load, "policies": measure(scenario)}
                    saved = {"cases": cases, "machine": machine(), "versions": versions()}
                    write_whole(RESULTS, json.dumps(saved, ensure_ascii=False, allow_nan=False) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.bursts", __doc__)
    parser.add_argument("--anew", action="store_true", help="measure everything, not only what is missing")
    arguments = parser.parse_args(given)
    if not arguments.docs:
        run(anew=arguments.anew)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
