"""`python -m bench.golden`: published figures beside those computed here; its page.

Reads ../shared/data beside the checkout. Saves bench/golden.json after each figure; `--only TEXT` computes
those whose study or name contains it, `--docs` only writes the page.
"""

from __future__ import annotations

import json
import time
from math import isnan
from typing import Any

from bench.golden.cases import Golden
from bench.golden.conic import is_installed
from bench.golden.page import page
from bench.golden.registry import all_goldens
from bench.page_command import page_parser, save_figures, write_page
from bench.startup import ROOT

RESULTS, PAGE = ROOT / "bench" / "golden.json", ROOT / "docs" / "benchmarks" / "golden.md"


def key(golden: Golden) -> str:
    return f"{golden.study}: {golden.name}"


def measured(golden: Golden) -> dict[str, Any]:
    begun_s = time.process_time()
    figure = golden.run()
    spent_s = time.process_time() - begun_s
    published = None if isnan(golden.published) else golden.published
    return {"figure": figure, "published": published, "cpu_s": round(spent_s, 2)}


def read() -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return saved


def main() -> None:
    parser = page_parser("bench.golden", __doc__)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for golden in [] if options.docs else all_goldens():
        if options.only in key(golden) and golden.extra and not is_installed():
            print(f"{key(golden)}: needs the extra {golden.extra}", flush=True)
        elif options.only in key(golden):
            found = measured(golden)
            saved = read() | {key(golden): found}  # read anew: several may run side by side
            print(f"{key(golden)}: {found['figure']:g}, published {found['published']}", flush=True)
            save_figures(RESULTS, saved)
    write_page(PAGE, page(all_goldens(), read()))


if __name__ == "__main__":
    main()
