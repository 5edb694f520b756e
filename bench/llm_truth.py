"""`python -m bench.llm_truth`: simulated language models beside measured ones; its page.

Reads runs and measurements from ../shared/data beside the checkout. Nothing is fitted to a run. Saves
bench/llm-truth.json; `--docs` only writes the page.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.llm_silicon import Served, contradictions, errors_across, errors_within, read_served
from bench.llm_truth_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.profiles import H100, MEASURED, fitted
from bench.startup import ROOT
from trimtab.engine.simulator import run
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build.run_inputs import build
from trimtab.policies import find
from trimtab.profiles import load_profile
from trimtab.profiles.fit_profile import iteration_s
from trimtab.profiles.roofline import roofline

RESULTS, PAGE = ROOT / "bench" / "llm-truth.json", ROOT / "docs" / "benchmarks" / "llm-truth.md"
DATA = ROOT.parent / "shared/data"
SILICON = DATA / "llm_silicon_latency/silicon_sample.csv.gz"
BLOCK_TOKENS = 16  # of vLLM's KV memory
DESCRIBED = {"gpu", "model", "precision", "source", "memory_gib", "weights_gib", "kv_bytes_per_token"}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredRun:
    """A run of vLLM, and how it was configured."""

    file: str
    profile: str
    batch_max: int
    token_budget: int
    kv_tokens: int


RUNS = {  # as their meta.json says; the KV memory of the RTX PRO 6000 is not told there, and is never full
    "RTX 4090": MeasuredRun("RTX4090_Llama-3.1-8B", "rtx4090-llama-3.1-8b", 256, 2048, 41_408),
    "RTX PRO 6000": MeasuredRun("RTXPRO6000_Llama-3.1-8B", "rtx-pro-6000-llama-3.1-8b", 128, 2048, 530_000),
}


def scenario_of(of: MeasuredRun, trace: Path) -> Scenario:
    """One GPU that serves the trace as the run did, and keeps blocks of prompts while there is room."""
    service = {"kind": "llm", "profile": of.profile, "batch_max": of.batch_max}
    service |= {"token_budget": of.token_budget, "kv_tokens": of.kv_tokens}
    return Scenario.model_validate(
        {
            "name": of.profile,
            "cluster": {"types": {"gpu": {"memory_gib": 80, "service": service}}, "nodes": [{"type": "gpu"}]},
            "classes": {"chat": {"unit_s": 0.02}},
            "workload": {"trace": {"file": trace, "block_tokens": BLOCK_TOKENS, "default_class": "chat"}},
            "serving": {"prefix_cache": {"blocks": of.kv_tokens // BLOCK_TOKENS}},
        }
    )


def written_trace(rows: list[dict[str, Any]], folder: Path) -> Path:
    """The run's requests as a trace. All prompts differ; a row that is preempted may find its own blocks."""
    file, blocks, lines = folder / "run.jsonl", 0, []
    for row in rows:
        many = row["input_toks"] // BLOCK_TOKENS
        request = {"arrival_s": row["queued_ts"] - rows[0]["queued_ts"], "prompt_tokens": row["input_toks"]}
        request |= {"output_tokens": row["output_toks"], "prefix_blocks": list(range(blocks, blocks + many))}
        lines.append(json.dumps(request))
        blocks += many
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def latencies(at: Floats, first: Floats, last: Floats, output: NDArray[np.int64]) -> dict[str, list[float]]:
    """Mean and 99th percentile, in seconds."""
    of = {"ttft": first - at, "tpot": (last - first) / np.maximum(1, output - 1), "e2e": last - at}
    return {name: [float(x.mean()), float(np.percentile(x, 99))] for name, x in of.items()}


def compared(of: MeasuredRun) -> dict[str, Any]:
    """Latencies of the run, and of its simulation."""
    with gzip.open(DATA / f"vllm_measured_runs/{of.file}_requests.jsonl.gz", "rt") as lines:
        rows = sorted((json.loads(line) for line in lines), key=lambda row: row["queued_ts"])
    with TemporaryDirectory() as folder:
        built = build(scenario_of(of, written_trace(rows, Path(folder))), 0)
    end = run(built.cluster, built.requests, built.options, find("round-robin"), mode="interpreted").state
    at, first, last = (
        np.array([row[f"{n}_ts"] for row in rows]) for n in ("queued", "first_token", "last_token")
    )
    output = np.array([row["output_toks"] for row in rows])
    arrival_s = end.work["arrival_s"]
    return {
        "requests": len(rows),
        "measured": latencies(at, first, last, output),
        "simulated": latencies(arrival_s, end.sequences["first_token_s"], end.requests["finish_s"], output),
        "preemptions": int(end.counts["preemptions"][0]),
    }


def op_errors() -> dict[str, Any]:
    """Held-back errors of the built-in profiles that are measured."""
    return {
        measured.name: {kind: asdict(error) for kind, error in fitted(measured).errors().items()}
        for measured in MEASURED
    }


def roofline_errors(served: Served) -> dict[str, Any]:
    """Errors of rooflines against servers with H100 in 16 bits, by model and GPUs."""
    found = {}
    for name in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B"):
        for ranks in (1, 2, 4, 8):
            of = [
                rows
                for c, rows in served.items()
                if name in c.model and (c.gpu, c.precision, c.tensor_parallel) == ("h100_sxm", "", str(ranks))
            ]
            if of:
                profile = roofline(H100, name, ranks)
                predicted = np.concatenate([iteration_s(profile, rows) for rows in of])
                ratio = predicted / np.concatenate([rows.seconds for rows in of]) - 1.0
                found[f"{name.partition('/')[2]}, {ranks}"] = {
                    "rows": len(ratio),
                    "bias": float(np.median(ratio)),
                    "median": float(np.median(np.abs(ratio))),
                    "p90": float(np.percentile(np.abs(ratio), 90)),
                }
    return found


def measure() -> dict[str, Any]:
    """All figures of the page."""
    served = read_served(SILICON)
    described = load_profile("h100-llama-3.1-8b").model_dump(include=DESCRIBED)
    return {
        "machine": machine(),
        "versions": versions(),
        "runs": {gpu: compared(of) for gpu, of in RUNS.items()},
        "operations": op_errors(),
        "within": errors_within(served, described),
        "across": errors_across(served, DATA / "gpu_system_specs"),
        "contradictions": contradictions(served),
        "rooflines": roofline_errors(served),
    }


def main() -> None:
    """Run from the command line."""
    given = page_parser("bench.llm_truth", __doc__).parse_args()
    if not given.docs:
        save_figures(RESULTS, measure())
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
