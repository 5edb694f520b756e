"""Writes the moments of traces for flower_app.py, in trimtab's own environment.

python write_sites.py OUT TRACE...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from trimtab.learn.federated.estimates import EstimatesProblem
from trimtab.learn.federated.site_data import site_rows
from trimtab.traces import read_trace


def main(out: Path, traces: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for trace in traces:
        moments = site_rows(read_trace(trace), EstimatesProblem().layout).moments
        np.savez(out / f"{trace.name.split('.')[0]}.npz", **moments._asdict())


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
