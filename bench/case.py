"""`make case`: the case study, into bench/case.json, docs/case/index.md and its figures.

`python -m bench.case` runs it; `--docs` only writes the page; `--train` trains the weights of the learned
policies, into bench/case-*.safetensors (`make case-train`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from matplotlib import rcParams
from matplotlib.figure import Figure

from bench.machine import machine
from bench.page import markdown_table
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.experiments.case import CaseStudy, Scale, run_case
from trimtab.experiments.case.case_workload import LOADS, workload
from trimtab.metrics import mean_ci95
from trimtab.report.case_page import FRONT_HOW, front
from trimtab.report.case_tables import TextTable, case_tables

RESULTS, PAGE = ROOT / "bench" / "case.json", ROOT / "docs" / "case" / "index.md"
WEIGHTS = {"learned, residual": "es", "learned, DQN": "dqn", "learned, A2C": "a2c", "transferred": "transfer"}
POLICIES = {
    "es": "learned-residual",
    "dqn": "learned-dispatch",
    "a2c": "learned-dispatch",
    "transfer": "learned-residual",
}
TRAINED_FOR = 20  # generations of dqn and a2c, 51,200 decisions each

HEAD = """<!-- Made by `make case` from what it measured; `python -m bench.case --docs` writes it anew. -->

# The case of 100 nodes

100 GPU nodes of four kinds serve 10,000 images of unlike cost and size. The cluster, the load and each
strategy are those of the source that this project began with; its claims stand beside what was measured.
`trimtab case` runs the study on your machine, `trimtab case --quick` in one or two minutes. All figures
are simulated; `src/trimtab/experiments/case` has the study, and says which numbers of the workload are made
up.

![Mean completion time by strategy](strategies.svg)

Mean completion time at the highest load; the line is the lower bound for whole images.

"""
LEFT_OUT = """## What is not in it

Streams whose steps wait on each other, routes through a network graph, and codecs that are chosen by link
are not part of this study yet; compression is a ratio and seconds that were assumed. Learned weights were
trained on generated clusters (`make case-train`), those called *transferred* on this workload with other
seeds after that.

Smoothing and ARIMA have equal rows: with one dispatcher and fresh reports there is nothing to forecast, and
the policy decides as without.
"""


def train() -> None:
    """Train the weights of the learned policies on generated clusters, and bring one to this workload."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        target = made / "case.yaml"
        whole = workload({"parameter cache"}, LOADS[-1], 2000) | {"seeds": list(range(100, 108))}
        target.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
        for method in ("dqn", "a2c"):
            _learn("train", "--method", method, "--generations", TRAINED_FOR, "--out", made / method)
        _learn("train", "--generations", 40, "--out", made / "es")
        weights = made / "es" / "weights.safetensors"
        _learn("transfer", weights, "--to", target, "--way", "fine-tuned", "--out", made / "transfer")
        for name in WEIGHTS.values():
            shutil.copy(made / name / "weights.safetensors", _weights(name))


def _learn(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "trimtab", "learn", *map(str, arguments)], check=True)


def _weights(name: str) -> Path:
    return ROOT / "bench" / f"case-{name}.safetensors"


def measure() -> CaseStudy:
    """The study at full scale, with those learned policies whose weights are there."""
    learned = {
        strategy: f"{POLICIES[name]}(artifact={_weights(name)})"
        for strategy, name in WEIGHTS.items()
        if _weights(name).exists()
    }
    runs = ROOT / "trimtab-out" / "case"
    study = run_case(
        Scale(), runs, learned, say=lambda done, total, what: print(f"{done}/{total} {what}", flush=True)
    )
    shutil.rmtree(runs)
    return study


def page(saved: dict[str, Any]) -> str:
    """The whole page."""
    study = study_of(saved)
    claims, *tables = case_tables(study)
    curves = f"## Evenness against speed\n\n{FRONT_HOW}\n\n![Evenness against speed](front.svg)\n"
    parts = [_section(claims), curves, *map(_section, tables), LEFT_OUT]
    on = saved["machine"]
    return f"{HEAD}Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n\n" + "\n".join(parts)


def study_of(saved: dict[str, Any]) -> CaseStudy:
    """The study of saved figures."""
    given = dict(saved["study"])
    scale = given.pop("scale")
    return CaseStudy(Scale(**scale | {"loads": tuple(scale["loads"])}), **given)


def _section(table: TextTable) -> str:
    return f"## {table.title}\n\n{table.how}\n\n{markdown_table(table.head, table.rows)}"


def strategies_figure(study: CaseStudy) -> Figure:
    """Mean completion of each strategy at the highest load, as bars with intervals."""
    load = list(study.strategies)[-1]
    means = {name: mean_ci95(row["completion_mean_s"]) for name, row in study.strategies[load].items()}
    figure = Figure(figsize=(8.2, 0.3 * len(means) + 1), layout="constrained")
    axes = figure.subplots()
    names = list(means)[::-1]
    of = [means[name] for name in names]
    axes.barh(
        names, [one.mean for one in of], xerr=[one.ci95 or 0.0 for one in of], color="#546e7a", capsize=2
    )
    axes.axvline(mean_ci95(study.bound_s[load]).mean, color="#c62828", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel(f"mean completion (s), load {load}")
    return figure


def front_figure(study: CaseStudy) -> Figure:
    """Mean completion against Var(U)."""
    points, best = front(study)
    figure = Figure(figsize=(8.2, 5.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*(points[name] for name in best), strict=True), color="#b0bec5", linewidth=1)
    for name, (x, y) in points.items():
        axes.plot(x, y, "o", color="#546e7a", markersize=5)
        axes.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("mean completion (s)")
    axes.set_ylabel("Var(U)")
    return figure


def main() -> None:
    """Train or measure, unless told not to, and write the page."""
    parser = page_parser("bench.case", __doc__)
    parser.add_argument(
        "--train", action="store_true", help="train the weights of the learned policies, and end"
    )
    given = parser.parse_args()
    if given.train:
        train()
        return
    if not given.docs:
        save_figures(RESULTS, {"machine": machine(), "study": measure().to_dict()})
    saved = saved_figures(RESULTS)
    PAGE.parent.mkdir(exist_ok=True)
    write_page(PAGE, page(saved))
    study = study_of(saved)
    rcParams["svg.hashsalt"] = "trimtab"  # equal figures give equal files
    for name, figure in (("strategies", strategies_figure(study)), ("front", front_figure(study))):
        figure.savefig(PAGE.parent / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
