"""`python -m bench.federated`: output lengths learned alone, together and pooled, what they bring; its page.

Each site has a history of a few rows and then serves what comes later. Traces are read from ../shared/data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from bench.federated_page import page
from bench.llm_routers import servegen
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policies import rounded
from bench.policy_cases import CHAT, DATA, TYPES
from bench.startup import ROOT
from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.domain.output_estimate import OutputEstimate
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario import Scenario
from trimtab.learn.federated.aggregation import Rule
from trimtab.learn.federated.estimates import EstimatesProblem, EstimatesSite, Moments, descended
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.learn.federated.site_data import site_rows
from trimtab.traces import read_trace

RESULTS, PAGE = ROOT / "bench" / "federated.json", ROOT / "docs" / "benchmarks" / "federated.md"
HISTORY, SERVED, REPEATS = 300, 2_500, 4
LOAD, POLICY = 0.95, "least-expected-completion"
METRICS = ("completion_mean_s", "completion_p99_s")
PROBLEM: Final = EstimatesProblem()
ALL_ROUNDS: Final = 200  # sweeps over pooled rows, to the end
Rows = tuple[np.ndarray, np.ndarray]


def unlike() -> dict[str, Rows]:
    """Site → prompt and output tokens in order of arrival: public traces, and two generated ones."""
    found = {}
    for name, file in (
        ("Azure", "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"),
        ("Mooncake", "mooncake_fast25/conversation_trace.jsonl.gz"),
    ):
        table = read_trace(DATA / file).table
        found[name] = (table["prompt_tokens"].to_numpy(), table["output_tokens"].to_numpy())
    drawn = servegen(20_000, 0)
    found["ServeGen"] = drawn.prompt, drawn.output
    rng = np.random.default_rng(11)
    for name, per_token, base in (("generated, answers", 0.05, 150.0), ("generated, summaries", 0.25, 20.0)):
        prompt = 16 + rng.lognormal(6.5, 1.1, 20_000).astype(np.int64)
        output = rng.gamma(3.0, 1.0 / 3.0, 20_000) * (base + per_token * prompt)
        found[name] = prompt, np.clip(output, 1, 4_000).astype(np.int64)
    return found


def alike() -> dict[str, Rows]:
    """Sites with the same task: outputs grow alike with prompts, at levels and lengths of their own."""
    found, rng = {}, np.random.default_rng(12)
    for k, (level, length) in enumerate(((0.5, 6.0), (0.8, 7.5), (1.0, 6.5), (1.3, 7.0), (2.0, 5.5)), 1):
        prompt = 16 + rng.lognormal(length, 1.1, 20_000).astype(np.int64)
        output = level * rng.gamma(3.0, 1.0 / 3.0, 20_000) * (20.0 + 0.25 * prompt)
        found[f"summaries {k}"] = prompt, np.clip(output, 1, 4_000).astype(np.int64)
    return found


GROUPS: Final = {"unlike": unlike, "alike": alike}


def part(rows: Rows, begin: int, many: int) -> Rows:
    """Consecutive rows."""
    return rows[0][begin : begin + many], rows[1][begin : begin + many]


def moments(rows: Rows) -> Moments:
    """What a site learns from."""
    table = {"arrival_s": np.arange(len(rows[0])) * 1.0, "prompt_tokens": rows[0], "output_tokens": rows[1]}
    return site_rows(read_trace(pl.DataFrame(table)), PROBLEM.layout).moments


def together(data: Mapping[str, Moments], rule: Rule | None = None) -> LearnedEstimates:
    """What these sites learn by FedAvg."""
    sites = {name: EstimatesSite(PROBLEM, each) for name, each in data.items()}
    made = Federation(PROBLEM, Terms(tuple(sites), rule or Rule()))
    learned_together(made, sites)
    return PROBLEM.estimates(PROBLEM.numbers(made.history), made.history[-1].weights, {})


def pooled(data: Mapping[str, Moments]) -> LearnedEstimates:
    """What all rows in one place give."""
    total = Moments(*(np.sum(columns, axis=0) for columns in zip(*data.values(), strict=True)))
    return PROBLEM.estimates(descended(total, PROBLEM.numbers([]), ALL_ROUNDS, 0.0), total.rows, {})


def learned(data: Mapping[str, Moments], site: str) -> dict[str, LearnedEstimates | None]:
    """Kind of learning → what the site begins with."""
    alone = {site: data[site]}
    others = {name: each for name, each in data.items() if name != site}
    common = together(data)
    return {
        "nothing": None,
        "local only": together(alone),
        "others only": together(others),
        "federated": common,
        "federated, own": EstimatesSite(PROBLEM, data[site]).own_estimates(common),
        "pooled": pooled(data),
    }


def errors(rows: Rows, begun: LearnedEstimates | None) -> dict[str, float]:
    """Mean |expected − true| over the mean output: of what the site begins with, and as a gateway goes on."""
    curve = None if begun is None else begun.length("*")
    estimate, off, frozen = OutputEstimate(curve), [], []
    first = OutputEstimate(curve)
    for prompt, output in zip(*(each.tolist() for each in rows), strict=True):
        off.append(abs(estimate.predict(prompt) - output))
        frozen.append(abs(first.predict(prompt) - output))
        estimate.observe(prompt, 0.0, output)
    mean = float(rows[1].mean())
    return {
        "frozen": rounded(float(np.mean(frozen)) / mean) or 0.0,
        "online": rounded(float(np.mean(off)) / mean) or 0.0,
        "first": rounded(float(np.mean(off[:200])) / mean) or 0.0,
    }


def scenario(rows: Rows, folder: Path, begun: LearnedEstimates | None, seed: int) -> Scenario:
    """The rows on 16 nodes of 8 slots and three speeds, arriving as a Poisson process."""
    rng = np.random.default_rng((seed, 5))
    trace = folder / "trace.csv"
    table = {
        "arrival_s": np.cumsum(rng.exponential(1.0, len(rows[0]))),
        "prompt_tokens": rows[0],
        "output_tokens": rows[1],
    }
    pl.DataFrame(table).write_csv(trace)
    workload: dict[str, Any] = {"trace": {"file": str(trace)}, "load": LOAD, "output_estimate": "online-mean"}
    if begun is not None:
        (folder / "learned.safetensors").write_bytes(begun.artifact("learned").content())
        workload["learned"] = {"file": str(folder / "learned.safetensors")}
    types = {name: {**kind, "slots": 8} for name, kind in TYPES.items()}
    nodes = [{"type": name, "count": count} for name, count in zip(types, (4, 8, 4), strict=True)]
    cluster = {"types": types, "nodes": nodes}
    return Scenario.model_validate(
        {"name": "site", "cluster": cluster, "classes": CHAT, "workload": workload}
    )


def served(rows: Rows, begun: LearnedEstimates | None, seed: int) -> dict[str, float | None]:
    """Mean and p99 of completion."""
    with tempfile.TemporaryDirectory() as folder:
        found = compare(scenario(rows, Path(folder), begun, seed), (POLICY,), (seed,), sweep=(), jobs=1)
    return {name: rounded(found.results[0].runs[0].metrics[name]) for name in METRICS}


def measure(rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Site → kind of learning → figures, one for each repeat."""
    found: dict[str, Any] = {}
    for repeat in range(REPEATS):
        begins = {}
        for name, of_site in rows.items():
            room = len(of_site[0]) - HISTORY - SERVED
            begins[name] = round(room * (repeat + 0.5) / REPEATS)
        data = {name: moments(part(rows[name], begin, HISTORY)) for name, begin in begins.items()}
        for name, begin in begins.items():
            later = part(rows[name], begin + HISTORY, SERVED)
            for kind, begun in learned(data, name).items():
                cell = found.setdefault(name, {}).setdefault(kind, {})
                for key, value in {**errors(later, begun), **served(later, begun, repeat)}.items():
                    cell.setdefault(key, []).append(value)
            print(f"repeat {repeat + 1} of {REPEATS}: {name}")
    return found


def poisoned() -> dict[str, float]:
    """Rule → how far the common curve moves, over its mean, where one of five sites sends poison."""
    data = {name: moments(part(rows, 0, 3_000)) for name, rows in unlike().items()}
    honest = {name: each for name, each in data.items() if name != "ServeGen"}
    liar = data["ServeGen"]
    lies = liar._replace(target=liar.target * 50.0, rows=liar.rows * 1e6)
    found = {}
    for title, rule in RULES.items():
        clean, dirty = together(honest, rule), together({**honest, "ServeGen": lies}, rule)
        off = np.abs(dirty.lengths - clean.lengths).mean() / clean.lengths.mean()
        found[title] = rounded(float(off)) or 0.0
    return found


RULES: Final = {
    "mean, rows as told": Rule(),
    "mean, at most 3,000 rows": Rule(rows_max=3_000.0),
    "mean, at most 3,000 rows, clip 2": Rule(rows_max=3_000.0, clip=2.0),
    "trimmed mean": Rule("trimmed-mean"),
    "median": Rule("median"),
}


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.federated", __doc__).parse_args(given).docs:
        groups = {name: measure(of()) for name, of in GROUPS.items()}
        figures = {"groups": groups, "poison": poisoned(), "machine": machine(), "versions": versions()}
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
