"""`python -m bench.performance_models`: errors of performance models on held-back rows, and their page.

Reads ../shared/data beside the checkout. Saves bench/performance_models.json.
"""

from __future__ import annotations

import json

from bench.page_command import write_page
from bench.performance_models.cases import cases
from bench.performance_models.page import page
from bench.results import write_whole
from bench.startup import ROOT

RESULTS, PAGE = (
    ROOT / "bench" / "performance_models.json",
    ROOT / "docs" / "benchmarks" / "performance-models.md",
)


def main() -> None:
    rows = []
    for case in cases():
        error = case.error()
        row = {"way": case.way, "profile": case.profile, "held_back": case.held_back, "model": case.model}
        rows.append({**row, "error": round(error, 4)})
        print(f"{case.way}: {case.profile}, {case.held_back}, {case.model}: {100 * error:.1f} %", flush=True)
    write_whole(RESULTS, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_page(PAGE, page(rows))


if __name__ == "__main__":
    main()
