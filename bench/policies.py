"""`python -m bench.policies`: every policy of the catalogue on every scenario; its page.

    python -m bench.policies                     what bench/policies.json lacks, saved after every scenario
    python -m bench.policies --only GenTD26      scenarios whose name holds this, measured anew
    python -m bench.policies --policies a,b      only these policies, which replace what is saved of them
    python -m bench.policies --docs              only the page

Ten seeds, common random numbers, first come first served, the same parameters everywhere. Traces are read
from ../shared/data beside the checkout; scenarios whose trace is not there are left out, and told.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.machine import machine, versions
from bench.page_command import page_parser, saved_figures, write_page
from bench.policies_page import page
from bench.policy_cases import Case, cases
from bench.results import write_whole
from bench.startup import ROOT
from trimtab.experiments.compare import Comparison, PolicyResult
from trimtab.experiments.compare_policies import compare
from trimtab.policies import names

RESULTS, PAGE = ROOT / "bench" / "policies.json", ROOT / "docs" / "benchmarks" / "policies.md"
SEEDS = 10
DIGITS = 5  # significant, of what is saved
METRICS = (
    "completion_mean_s",
    "completion_p99_s",
    "slo_attained_frac",
    "utilisation_var",
    "rejected_frac",
)


def rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def saved() -> dict[str, Any]:
    """The measurements of an earlier run."""
    if not RESULTS.exists():
        return {"cases": {}}
    content: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return content


def _entry(result: PolicyResult) -> dict[str, Any]:
    """Values by metric, one per seed."""
    entry: dict[str, Any] = {name: [rounded(run.metrics[name]) for run in result.runs] for name in METRICS}
    entry["distance_frac"] = [rounded(run.distance_frac) for run in result.runs]
    entry["took_s"] = rounded(sum(run.loop_s for run in result.runs))
    return entry


def _case_entry(case: Case, found: Comparison) -> dict[str, Any]:
    return {
        "group": case.group,
        "hash": case.scenario.hash(),
        "load": rounded(found.offered_load),
        "requests": found.n_items,
        "reports_s": case.reports_s,
        "seeds": len(found.seeds),
        "policies": {result.policy: _entry(result) for result in found.results},
    }


def measure(case: Case, policies: Sequence[str], seeds: int) -> dict[str, Any]:
    """Run some policies on a case."""
    begun_s = time.perf_counter()
    found = compare(case.scenario, policies, seeds, sweep=(), mode="compiled")
    print(f"{case.name}: {len(policies)} policies, {time.perf_counter() - begun_s:.0f} s", file=sys.stderr)
    return _case_entry(case, found)


def _missing(case: Case, before: dict[str, Any] | None, wanted: Sequence[str]) -> list[str]:
    """Policies of which nothing is saved for this very scenario."""
    known = before["policies"] if before and before["hash"] == case.scenario.hash() else {}
    return [name for name in wanted if name not in known]


def _merged(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    if before and before["hash"] == now["hash"] and before["seeds"] == now["seeds"]:
        now["policies"] = dict(sorted((before["policies"] | now["policies"]).items()))
    return now


def run(arguments: argparse.Namespace) -> None:
    """Measure what is asked for, saving after every case."""
    results = saved()
    wanted = arguments.policies or names("dispatch")
    for case in cases():
        if arguments.only not in case.name:
            continue
        if case.trace is not None and not case.trace.exists():
            print(f"left out: {case.name}: {case.trace.name} is not there", file=sys.stderr)
            continue
        before = results["cases"].get(case.name)
        is_anew = bool(arguments.only or arguments.policies)
        todo = wanted if is_anew else _missing(case, before, wanted)
        if todo:
            results["cases"][case.name] = _merged(before, measure(case, todo, arguments.seeds))
            results |= {"machine": machine(), "versions": versions()}
            write_whole(RESULTS, json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.policies", __doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose name holds this, anew")
    parser.add_argument("--policies", type=lambda text: text.split(","), metavar="A,B", help="these, anew")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds (default {SEEDS})")
    arguments = parser.parse_args(given)
    if not arguments.docs:
        run(arguments)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
