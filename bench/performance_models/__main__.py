"""`python -m bench.performance_models`: errors of performance models on held-back rows, and their page.

Reads ../shared/data beside the checkout. Saves bench/performance_models.json. `--measure` measures the steps
of torch modules anew before, into the file that `trimtab profile job` learns from; it needs torch.
"""

from __future__ import annotations

import argparse
import json

from bench.page_command import write_page
from bench.performance_models.cases import cases
from bench.performance_models.page import page
from bench.results import write_whole
from bench.startup import ROOT
from trimtab.training.performance.module_steps import BUILTIN, write_steps

RESULTS, PAGE = (
    ROOT / "bench" / "performance_models.json",
    ROOT / "docs" / "benchmarks" / "performance-models.md",
)


def measure() -> None:
    from bench.performance_models.modules import BATCHES, MODULES
    from trimtab.learn.module_graphs import measured_step

    steps = []
    for name, make in MODULES.items():
        module = make()
        steps += [measured_step(module, module.example_inputs(batch), name) for batch in BATCHES]
        print(f"{name}: {1000 * steps[-1].seconds:.2f} ms at the largest batch", flush=True)
    write_steps(BUILTIN, steps)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.performance_models")
    parser.add_argument("--measure", action="store_true", help="measure the steps of torch modules anew")
    if parser.parse_args().measure:
        measure()
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
