"""`python -m bench.privacy`: what privacy costs: how far decisions move on shared traces; its page.

    python -m bench.privacy           what bench/privacy.json lacks, saved after each ε (10 minutes)
    python -m bench.privacy --anew    everything
    python -m bench.privacy --docs    only the page

Recorded traces are read from ../shared/data beside the checkout; those that are not there are left out.
Noise has a seed here, so that figures can be repeated; `trimtab trace share` takes none.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from bench.bursts import POLICIES
from bench.llm_routers import servegen
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policy_cases import DATA
from bench.privacy_page import page, plot
from bench.startup import ROOT
from trimtab.errors import UsageError
from trimtab.experiments.compare import Comparison
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario.loader import load_cluster, scenario_on
from trimtab.experiments.serving.objectives import objectives_of
from trimtab.experiments.serving.share_check import decisions_moved
from trimtab.experiments.serving.sizing import FleetSizing, size_fleet
from trimtab.privacy.mechanisms import Noise
from trimtab.traces import read_trace, write_trace
from trimtab.traces.sharing.promise import Promise, check
from trimtab.traces.sharing.release import release
from trimtab.traces.sharing.synthesis import synthetic

RESULTS, PAGE = ROOT / "bench" / "privacy.json", ROOT / "docs" / "benchmarks" / "privacy.md"
PLOT = ROOT / "docs" / "images" / "privacy.svg"
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 1e4)
RELEASES, SEEDS, OTHER_SEEDS = range(3), (0, 1), (2, 3)
COMPARED: Final = tuple(policy for policy in POLICIES if policy != "auto")  # which simulates the others
SIZING_S: Final = 5.0
AGAIN: Final = "original, other seeds"
SERVEGEN_REQUESTS, SERVEGEN_RATE_PER_S = 20_000, 10.0


@dataclass(frozen=True)
class Case:
    """A trace, the cluster that serves it, and the fleet that is sized for it."""

    title: str
    cluster: str
    load: float
    slo: str
    growth: float
    unit: str = "row"
    bound: int = 1


CASES: Final = {
    "azure": Case("Azure, conversation 2023", "azure-chat", 0.8, "completion_p99<60s", 1.0),
    "servegen": Case("ServeGen, m-small", "azure-chat", 0.8, "completion_p99<90s", 0.5),
    "gentd26": Case("GenTD26, images", "genai", 0.7, "completion_p99<120s", 60.0),
    "gentd26-tenants": Case(
        "GenTD26, images, by tenant", "genai", 0.7, "completion_p99<120s", 60.0, "tenant", 5
    ),
}
FILES: Final = {
    "azure": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
    "servegen": "servegen/m-small-week1-trace.csv.gz",
    "gentd26": "alibaba_genai_2026/lora_request_trace.csv.gz",
}


def original(name: str, folder: Path) -> Path | None:
    """The trace of a case; ServeGen publishes laws of clients, so that one is drawn from them first."""
    source = name.partition("-")[0]
    file = DATA / FILES[source]
    if not file.exists() or source != "servegen":
        return file if file.exists() else None
    load = servegen(SERVEGEN_REQUESTS, 0)
    arrival_s = np.cumsum(load.gap) / SERVEGEN_RATE_PER_S
    columns = {"arrival_s": arrival_s, "prompt_tokens": load.prompt, "output_tokens": load.output}
    return write_trace(pl.DataFrame(columns), folder / "servegen.csv")


def seeded_noise(seed: int) -> Noise:
    """Rounded Gaussian noise of a seed."""
    rng = np.random.default_rng(seed)
    return lambda counts, sigma: counts + np.rint(rng.normal(0.0, sigma, counts.shape)).astype(np.int64)


def measured(case: Case, trace: Path, seeds: Sequence[int]) -> tuple[Comparison, FleetSizing]:
    """Policies, and the cheapest fleet, on a trace. Adapters are drawn: GenTD26 does not name them."""
    part = load_cluster(ROOT / "examples" / "clusters" / f"{case.cluster}.yaml")
    on = scenario_on(trace, part)
    spec = on.workload.trace
    assert spec is not None
    drawn = spec.model_copy(update={"adapters": "drawn"})
    own = on.model_copy(update={"workload": on.workload.model_copy(update={"trace": drawn})})
    loaded = own.model_copy(update={"workload": own.workload.model_copy(update={"load": case.load})})
    sizing = size_fleet(own, objectives_of(case.slo), growth=case.growth, seconds_max=SIZING_S)
    return compare(loaded, COMPARED, seeds, sweep=(), jobs=1), sizing


def shared(case: Case, trace: Path, epsilon: float, seed: int, out: Path) -> Path | None:
    """A shared trace; None where the trace is too small for the promise."""
    read, promise = read_trace(trace), Promise(epsilon, 1e-6, case.unit, case.bound)
    try:
        check(read, promise)
    except UsageError:
        return None
    rng = np.random.default_rng([seed, 1])
    told = release(read.table, promise, read.size_rule, seeded_noise(seed), rng)
    return write_trace(synthetic(told, rng, 0.05), out)


def missing(
    name: str, case: Case, trace: Path, folder: Path, known: Mapping[str, Any]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What changes at each ε that is not known, one entry for each release; first, with other seeds alone."""
    labels = {f"{epsilon:g}": epsilon for epsilon in EPSILONS if f"{epsilon:g}" not in known}
    if not labels and AGAIN in known:
        return
    first = measured(case, trace, SEEDS)
    if AGAIN not in known:
        again = compare(first[0].scenario, COMPARED, OTHER_SEEDS, sweep=(), jobs=1)
        yield AGAIN, [decisions_moved(first, (again, first[1])).to_dict()]
    for label, epsilon in labels.items():
        files = [
            shared(case, trace, epsilon, seed, folder / f"{name}-{label}-{seed}.csv") for seed in RELEASES
        ]
        yield (
            label,
            [decisions_moved(first, measured(case, f, SEEDS)).to_dict() for f in files if f is not None],
        )


def run(*, anew: bool) -> None:
    """Measure what is missing, saving after each ε."""
    figures = {} if anew or not RESULTS.exists() else saved_figures(RESULTS)
    cases = figures.setdefault("share", {"cases": {}})["cases"]
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            if (trace := original(name, Path(folder))) is None:
                continue
            found = cases.setdefault(name, {"title": case.title, "slo": case.slo, "moved": {}})["moved"]
            for label, entries in missing(name, case, trace, Path(folder), found):
                found[label] = entries
                figures |= {"machine": machine(), "versions": versions()}
                save_figures(RESULTS, figures)
                print(f"{name}, {label}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.privacy", __doc__)
    parser.add_argument("--anew", action="store_true", help="measure everything, not only what is missing")
    arguments = parser.parse_args(given)
    if not arguments.docs:
        run(anew=arguments.anew)
        plot(saved_figures(RESULTS), PLOT)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
