"""trimtab beside Slurm's own backfill: bench/slurm.json and docs/benchmarks/slurm.md. `python -m bench.slurm`

Real slurmctld and slurmd, one cluster for each run. Every scheduler gets the same jobs, which sleep, at the
same moments; schedulers take turns. `--docs` only writes the page, `--seeds N` runs other job lists.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.slurm_page import page
from bench.startup import ROOT

sys.path.append(str(ROOT / "tests"))  # the cluster is the tests' own
from support.slurm.cluster import COMMAND, SlurmCluster, missing
from support.waiting import wait_until

RESULTS, PAGE = ROOT / "bench" / "slurm.json", ROOT / "docs" / "benchmarks" / "slurm.md"
JOBS: Final = 30
GAP_S: Final = 0.4  # mean time between two submissions
RUN_S: Final = (2, 8)  # how long jobs sleep
SIZES: Final = ((1, 1, 0.4), (1, 2, 0.25), (1, 4, 0.2), (2, 4, 0.15))  # nodes, GPUs of each, how often
ENDS_WITHIN_S: Final = 900.0


@dataclass(frozen=True)
class Contestant:
    """A scheduler: Slurm with these parameters, or trimtab with a policy."""

    policy: str = ""
    parameters: str = ""


CONTESTANTS: Final = {
    "Slurm, backfill as it is by default (every 30 s)": Contestant(),
    "Slurm, backfill every second": Contestant(parameters="bf_interval=1"),
    "trimtab, best-fit": Contestant("best-fit"),
    "trimtab, fragmentation-gradient": Contestant("fragmentation-gradient"),
}


@dataclass(frozen=True)
class Job:
    """A job, submitted so many seconds after the start."""

    at_s: float
    nodes: int
    gpus: int
    run_s: int


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.slurm", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if not given.docs:
        if reason := missing():
            raise SystemExit(reason)
        save_figures(RESULTS, measured(given.seeds))
    write_page(PAGE, page(saved_figures(RESULTS)))


def measured(seeds: int) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "jobs": JOBS}
    figures["runs"] = {name: [] for name in CONTESTANTS}
    for seed in range(seeds):
        jobs = drawn(seed)
        for name, contestant in CONTESTANTS.items():
            folder = Path(tempfile.mkdtemp(prefix="trimtab-slurm-"))
            with SlurmCluster(folder, parameters=contestant.parameters) as cluster:
                figures["runs"][name].append(outcome(cluster, contestant, jobs))
            print(seed, name, figures["runs"][name][-1], flush=True)
    return figures


def drawn(seed: int) -> list[Job]:
    """A list of jobs."""
    pick = np.random.default_rng(seed)
    at_s = np.cumsum(pick.exponential(GAP_S, JOBS))
    sizes = pick.choice(len(SIZES), JOBS, p=[share for _, _, share in SIZES])
    run_s = pick.integers(RUN_S[0], RUN_S[1], JOBS, endpoint=True)
    return [Job(float(at_s[i]), *SIZES[sizes[i]][:2], int(run_s[i])) for i in range(JOBS)]


def outcome(cluster: SlurmCluster, contestant: Contestant, jobs: list[Job]) -> dict[str, float]:
    """What became of the jobs under a scheduler; seconds, by Slurm's own times, which are whole."""
    if contestant.policy:
        command = ["slurm", "scheduler", "--partition", "gpu", "--policy", contestant.policy]
        cluster.run("scheduler", [*COMMAND, *command])
        cluster.await_active("scheduler")
    begun_s, names = time.monotonic(), []
    for job in jobs:
        time.sleep(max(0.0, job.at_s - (time.monotonic() - begun_s)))
        options = (f"--nodes={job.nodes}", f"--gres=gpu:{job.gpus}", "--time=1")
        names.append(cluster.submit(*options, seconds=job.run_s, held=bool(contestant.policy)))
    ended = wait_until(
        cluster.jobs,
        lambda found: all(found[name]["job_state"] == "COMPLETED" for name in names),
        timeout_s=ENDS_WITHIN_S,
    )
    if contestant.policy:
        cluster.stop("scheduler", signal.SIGTERM)
    return figures_of([ended[name] for name in names], jobs)


def figures_of(ended: Sequence[Mapping[str, Any]], jobs: Sequence[Job]) -> dict[str, float]:
    """Waits and makespan of jobs that have ended, as squeue tells them."""
    waits = np.array([each["start_time"] - each["submit_time"] for each in ended], float)
    wide = np.array([job.nodes > 1 for job in jobs])
    first = min(each["submit_time"] for each in ended)
    return {
        "wait_mean_s": float(waits.mean()),
        "wait_wide_mean_s": float(waits[wide].mean()),
        "wait_max_s": float(waits.max()),
        "makespan_s": float(max(each["end_time"] for each in ended) - first),
    }


if __name__ == "__main__":
    main()
