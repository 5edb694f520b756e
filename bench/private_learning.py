"""`python -m bench.private_learning`: what encrypted sums and private training cost; its page.

    python -m bench.private_learning           measure all (three minutes)
    python -m bench.private_learning --docs    only the page

Lengths are learned from the Azure trace in ../shared/data, without which that part is left out. Descents have
seeds here; `trimtab learn lengths` takes none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policy_cases import DATA
from bench.private_learning_page import page
from bench.startup import ROOT
from trimtab.domain.artifact import Artifact
from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.learn.federated.estimates import EstimatesProblem, EstimatesSite
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.learn.federated.site_data import rows_with_lengths, site_rows
from trimtab.learn.private_lengths import private_lengths
from trimtab.learn.private_training import Descent
from trimtab.privacy.secure_sums import PublicKey, SumKey, new_keys
from trimtab.traces import Trace, read_trace

sys.path.insert(0, str(ROOT / "examples" / "private"))
from encrypted_lengths import expected

RESULTS = ROOT / "bench" / "private-learning.json"
PAGE = ROOT / "docs" / "benchmarks" / "private-learning.md"
SIZES: Final = (100, 1_000, 10_000, 100_000)
SITES, TIMES = 5, 5
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
ROWS: Final = (300, 1_000, 3_000, 9_000)
DELTA, SEEDS = 1e-5, range(5)
TRACE: Final = DATA / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv.gz"


def median_s(act: Callable[[], object], times: int = TIMES) -> float:
    """CPU seconds of a call, the median of some."""
    found = []
    for _ in range(times):
        begun_s = time.process_time()
        act()
        found.append(time.process_time() - begun_s)
    return float(np.median(found))


def sums() -> dict[str, Any]:
    """Cost and error of encrypted sums of five updates, by size."""
    secret, public = new_keys()
    site, server = SumKey.parsed(secret, "sites.key"), PublicKey.parsed(public, "server.key")
    found: dict[str, Any] = {"secret_kb": len(secret) / 1e3, "public_kb": len(public) / 1e3, "sizes": {}}
    for size in SIZES:
        draw = np.random.default_rng(size)
        updates = [draw.normal(size=size) for _ in range(SITES)]
        encrypted = [site.encrypted(update) for update in updates]
        total = server.summed(encrypted)
        found["sizes"][str(size)] = {
            "kb": len(encrypted[0]) / 1e3,
            "plain_kb": 8 * size / 1e3,
            "encrypt_ms": 1e3 * median_s(lambda update=updates[0]: site.encrypted(update)),
            "add_ms": 1e3 * median_s(lambda all_=encrypted: server.summed(all_)) / SITES,
            "decrypt_ms": 1e3 * median_s(lambda all_=total: site.decrypted(all_, SITES)),
            "error": float(np.abs(site.decrypted(total, SITES).values - np.sum(updates, axis=0)).max()),
        }
    return found


def inference() -> list[dict[str, float]]:
    """Cost of encrypted inference of one prompt, and of as many as a ciphertext holds."""
    curve = np.linspace(10.0, 1000.0, 27)
    return [expected(curve, list(np.linspace(20.0, 50_000.0, many)))[1] for many in (1, 4_096)]


def error_of(estimates: LearnedEstimates, rows: pl.DataFrame) -> float:
    """Mean |expected − true output tokens| over the mean output."""
    curve = estimates.length("*")
    assert curve is not None
    output = rows["output_tokens"].to_numpy()
    found = np.array([curve.at(float(prompt)) for prompt in rows["prompt_tokens"]])
    return float(np.abs(found - output).mean() / output.mean())


def trace_of(rows: pl.DataFrame, like: Trace) -> Trace:
    """Some rows of a trace."""
    return replace(like, table=rows)


def accuracy() -> dict[str, Any]:
    """Errors on the second half of the trace, by rows of the first half and by ε."""
    trace = read_trace(TRACE)
    (known,) = (rows for _, rows in rows_with_lengths(trace.table))
    half = known.height // 2
    later = known[half:]
    mean = float(known[:half]["output_tokens"].mean())
    told = later["output_tokens"].to_numpy()
    found: dict[str, Any] = {"constant": float(np.abs(told - mean).mean() / told.mean()), "rows": {}}
    for rows in ROWS:
        parts = [_part(trace, known[:half], rows, seed) for seed in SEEDS]
        problem = EstimatesProblem()
        open_errors = []
        for part in parts:
            site = EstimatesSite(problem, site_rows(part, problem.layout).moments)
            learned = learned_together(Federation(problem, Terms(("a",))), {"a": site}).result()[1]
            open_errors.append(error_of(LearnedEstimates.of(Artifact.parsed(learned, "learned")), later))
        errors: dict[str, list[float]] = {"in the open": open_errors}
        for epsilon in (np.inf, *EPSILONS):
            errors[f"{epsilon:g}"] = [
                error_of(
                    private_lengths(
                        part, ["*"], epsilon=epsilon, delta=DELTA, descent=Descent(), seed=seed
                    ).estimates,
                    later,
                )
                for seed, part in enumerate(parts)
            ]
        found["rows"][str(rows)] = errors
    return found


def _part(trace: Trace, known: pl.DataFrame, rows: int, seed: int) -> Trace:
    begin = int(np.random.default_rng(seed).integers(0, known.height - rows + 1))
    return trace_of(known[begin : begin + rows], trace)


def main() -> None:
    """Measure, save, write the page."""
    parser = page_parser("bench.private_learning", __doc__)
    if not parser.parse_args().docs:
        figures = {"machine": machine(), "versions": versions()}
        figures |= {"sums": sums(), "inference": inference()}
        if TRACE.exists():
            figures["accuracy"] = accuracy()
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
