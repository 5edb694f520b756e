"""`python -m bench.kube`: speed and fragmentation of schedulers on real Kubernetes, and the page.

Saves bench/kubernetes.json; `--docs` only writes the page, `--seeds N` measures other samples of openb.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.fragmentation import DATA
from bench.kube.course import PROFILES, SPEEDS, speed
from bench.kube.openb import Sample, outcome
from bench.kube.page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from support.kubernetes.control_plane import ControlPlane, programs

RESULTS, PAGE = ROOT / "bench" / "kubernetes.json", ROOT / "docs" / "benchmarks" / "kubernetes.md"
ROUNDS = 3


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.kube", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if not given.docs:
        save_figures(RESULTS, measured(given.seeds))
    write_page(PAGE, page(saved_figures(RESULTS)))


def measured(seeds: int) -> dict[str, Any]:
    """All figures. Every run has a control plane of its own; schedulers take turns."""
    found = programs()
    if isinstance(found, str):
        raise SystemExit(found)
    figures: dict[str, Any] = {"machine": machine(), "versions": versions()}
    figures["speed"] = {name: [] for name in SPEEDS}
    for number in range(ROUNDS):
        for name, setting in SPEEDS.items():
            with plane(found) as one:
                figures["speed"][name].append(speed(one, setting))
            print(number, name, figures["speed"][name][-1], flush=True)
    figures["openb"] = {name: [] for name in PROFILES}
    for seed in range(seeds):
        sample = Sample.drawn(DATA, seed)
        for name, profile in PROFILES.items():
            with plane(found) as one:
                figures["openb"][name].append(outcome(one, profile, sample))
            print(seed, name, figures["openb"][name][-1], flush=True)
    return figures


def plane(found: Path) -> ControlPlane:
    """A control plane in a new folder."""
    return ControlPlane(Path(tempfile.mkdtemp(prefix="trimtab-kube-")), found)


if __name__ == "__main__":
    main()
