"""`python -m bench.training`: weighted-goodput beside the published allocators, and its page.

`--generated` measures the workloads on which its parameters were fixed, `--varied` our own there with each
parameter varied; otherwise the published ones are measured, which lie in ../shared/data. What is saved in
bench/training.json is not measured again unless `--anew`. `--only TEXT` takes cases whose name contains it,
`--policy TEXT` allocators; `--rounds` measures the time of a decision, `--gaps` how far allocators are from
the optimum of small lists; `--docs` only writes the page.
"""

from __future__ import annotations

import json
import time
from typing import Any

from bench.ages import commit_now
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.results import write_whole
from bench.startup import ROOT
from bench.training import generated, published
from bench.training.cases import OURS, Case, measured
from bench.training.gaps import all_gaps
from bench.training.page import page
from bench.training.round_time import ROUND_TIME, round_times

RESULTS, PAGE = ROOT / "bench" / "training.json", ROOT / "docs" / "benchmarks" / "training.md"
GAPS = ROOT / "bench" / "training-gaps.json"  # of their own, since they are measured apart
VARIED = {"keep_s": (150, 600), "fair_ratio": (1, 2), "long_frac": (0.7, 1.0)}


def read() -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return saved


def save(case: Case, spec: str, seed: int, found: dict[str, float]) -> None:
    saved = read()  # anew: several may run side by side
    saved.setdefault(case.name, {}).setdefault(spec, {})[str(seed)] = found
    save_figures(RESULTS, saved)


def measure(case: Case, specs: list[str], *, anew: bool, only_policy: str) -> None:
    for spec in specs:
        for seed in case.seeds:
            if only_policy not in spec:
                continue
            if not anew and str(seed) in read().get(case.name, {}).get(spec, {}):
                continue
            begun_s = time.process_time()
            found = measured(case.run(spec, seed), case.metrics)
            found["cpu_s"] = round(time.process_time() - begun_s, 1)
            save(case, spec, seed, found)
            print(
                case.name, spec, seed, {k: round(found[k], 4) for k in (*case.metrics, "cpu_s")}, flush=True
            )


def add_bounds(cases: list[Case]) -> None:
    """Save bounds beside our own figures, where they are missing."""
    saved = read()
    for case in cases:
        for seed, found in saved.get(case.name, {}).get(OURS, {}).items():
            for metric in case.metrics if case.bound is not None else ():
                if f"bound_{metric}" not in found and case.bound is not None:
                    found[f"bound_{metric}"] = case.bound(metric, int(seed))
    save_figures(RESULTS, saved)


def varied() -> list[str]:
    return [f"{OURS}({name}={value})" for name, values in VARIED.items() for value in values]


def main() -> None:
    parser = page_parser("bench.training", __doc__)
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--varied", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--policy", default="")
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--rounds", action="store_true")
    parser.add_argument("--gaps", action="store_true")
    options = parser.parse_args()
    if options.rounds:
        write_whole(RESULTS, json.dumps(read() | {ROUND_TIME: round_times()}, indent=1) + "\n")
    chosen = generated.cases() if options.generated or options.varied else published.cases()
    if options.gaps:
        save_figures(GAPS, {"commit": commit_now(), "gaps": all_gaps()})
    for case in [] if options.docs or options.rounds or options.gaps else chosen:
        if options.only in case.name:
            specs = varied() if options.varied else [OURS, *case.rivals, *case.oracles]
            measure(case, specs, anew=options.anew, only_policy=options.policy)
    add_bounds([*generated.cases(), *published.cases()])
    gaps = saved_figures(GAPS) if GAPS.exists() else {}
    write_page(PAGE, page(generated.cases(), published.cases(), read(), gaps))


if __name__ == "__main__":
    main()
