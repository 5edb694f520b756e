"""Jobs that ended, as a table that `sacct --parsable2` would print: from its database, or by watching.

Without slurmdbd Slurm forgets a job minutes after its end (MinJobAge). What ended while a partition was
watched is then all that there is.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from trimtab.clusters.slurm.cluster_view import ClusterView
from trimtab.clusters.slurm.commands import output
from trimtab.clusters.slurm.slurm_jobs import RUNS, Job
from trimtab.clusters.slurm.slurm_nodes import GPU

FILE: Final = "jobs.txt"
_COLUMNS: Final = (
    "JobID", "User", "Account", "State", "Submit", "Start", "ElapsedRaw", "TimelimitRaw", "NNodes",
    "AllocTRES", "ReqTRES", "NodeList",
)  # fmt: skip


class JobTable:
    """Collects the jobs of a partition that end."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._ended: dict[str, Job] = {}

    def note(self) -> str:
        """Keep what the view shows of jobs that have ended, after each look."""
        for job in self._view.jobs.values():
            if (
                job.partition == self._view.partition
                and job.node_list
                and job.state not in (*RUNS, "PENDING")
            ):
                self._ended[job.id] = job
        return ""

    def write(self, folder: Path, since: str) -> int:
        """Write the table; returns its number of jobs. `since`: --starttime of sacct; "" = what was seen."""
        rows = self._of_sacct(since) if since else list(map(_row, self._ended.values()))
        (folder / FILE).write_text("\n".join(["|".join(_COLUMNS), *rows]) + "\n")
        return len(rows)

    def _of_sacct(self, since: str) -> list[str]:
        asked = ("--allusers", "--parsable2", "--noheader", "--allocations", "--starttime", since)
        text = output("sacct", *asked, "--partition", self._view.partition, "--format", ",".join(_COLUMNS))
        return text.splitlines()


def _row(job: Job) -> str:
    tres = ",".join(
        f"{name}={amount * job.n_nodes}" for name, amount in sorted(job.needs.items()) if GPU in name
    )
    limit = f"{job.limit_s / 60.0:.0f}" if job.limit_s else "UNLIMITED"
    return "|".join(
        (
            job.id,
            job.user,
            job.account,
            job.state,
            _time(job.submit_s),
            _time(job.start_s),
            f"{max(0.0, job.end_s - job.start_s):.0f}",
            limit,
            str(job.n_nodes),
            tres,
            tres,
            ",".join(job.node_list),
        )
    )


def _time(unix_s: float) -> str:
    """Local time, as Slurm prints it."""
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%dT%H:%M:%S")
