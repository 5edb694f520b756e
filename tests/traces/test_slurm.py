"""Output of Slurm as a trace of jobs and as a state, every value worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trace_files import written
from trimtab.errors import TraceError
from trimtab.traces.read_jobs import JobTable, holds_jobs, read_jobs

SACCT = """\
JobID|JobName|Partition|User|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES
1001|it's "4"|gpu|u1|COMPLETED|2026-03-01T10:00:00|2026-03-01T10:05:00|2026-03-01T11:05:00|3600|gres/gpu=4|
1001.batch|batch|||COMPLETED|2026-03-01T10:05:00|2026-03-01T10:05:00|2026-03-01T11:05:00|3600|gres/gpu=4|
1002_[1-4]|arr|gpu|u2|CANCELLED by 1000|2026-03-01T10:10:00|Unknown|Unknown|0||gres/gpu=1
1003|prep|cpu|u2|COMPLETED|2026-03-01T10:10:00|2026-03-01T10:10:00|2026-03-01T10:12:00|120|cpu=8|cpu=8
1004|big|g|u2|FAILED|2026-03-01T09:59:00|2026-03-01T10:10:00|2026-03-01T10:12:00|120|gres/gpu:a100=4,gres/gpu:h100=2|
1005|now|gpu|u2|RUNNING|2026-03-01T10:20:00|2026-03-01T10:30:00|Unknown|60|gres/gpu=8,gres/gpu:a100=8|
"""
SQUEUE = """\
JOBID|USER|ACCOUNT|STATE|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|NODELIST|REASON
10|u1|a|RUNNING|2026-03-01T10:00:00|2026-03-01T10:10:00|50:00|2:00:00|3|gres/gpu:a100:4|gpu-[01-02],big7|None
11_[1-5:2,9%2]|u2|b|PENDING|2026-03-01T10:30:00|N/A|0:00|1-01:00:00|1|gres:gpu:8||(Resources)
12|u2|b|PENDING|2026-03-01T10:31:00|N/A|0:00|UNLIMITED|2|gres/gpu||(Priority)
13|u2|b|PENDING|2026-03-01T10:31:00|N/A|0:00|1:00:00|1|gres/gpu:1||(Dependency)
14|u2|b|RUNNING|2026-03-01T10:31:00|2026-03-01T10:31:00|1:00|1:00:00|1|N/A|big7|None
15|u2|b|COMPLETED|2026-03-01T10:31:00|2026-03-01T10:31:00|1:00|1:00:00|1|gres/gpu:1|big7|None
"""


def rows(table: JobTable, *names: str) -> list[tuple[object, ...]]:
    return table.jobs.select(names).rows()


@pytest.mark.parametrize("ends_with_bar", [False, True])  # --parsable2, --parsable
def test_jobs_that_ended_are_a_trace(tmp_path: Path, ends_with_bar: bool) -> None:
    text = SACCT.replace("\n", "|\n") if ends_with_bar else SACCT
    file = written(tmp_path, "sacct.txt", text)
    assert holds_jobs(file)
    table = read_jobs(file)
    # Submissions count from 09:59; what failed used its GPUs as well.
    assert rows(table, "job_id", "submit_s", "gpus", "duration_s", "tenant") == [
        ("1004", 0.0, 6, 120.0, "u2"),
        ("1001", 60.0, 4, 3600.0, "u1"),
    ]
    assert table.left_out == {"that never ran": 1, "that ask for no GPU": 1, "that have not ended": 1}


def test_jobs_that_run_and_wait_are_a_state(tmp_path: Path) -> None:
    table = read_jobs(written(tmp_path, "squeue.txt", SQUEUE), use="state")
    year = 365 * 86_400.0
    names = ("job_id", "submit_s", "gpus", "held", "run_s", "duration_s", "work_left", "attained_gpu_s")
    array = [(f"11_{k}", 1800.0, 8, "", 0.0, 90_000.0, 90_000.0, 0.0) for k in (1, 3, 5, 9)]
    assert rows(table, *names) == [
        ("10", 0.0, 12, "gpu-01:4;gpu-02:4;big7:4", 3000.0, 7200.0, 4200.0, 36_000.0),
        *array,
        ("12", 1860.0, 2, "", 0.0, year, year, 0.0),
    ]
    assert table.left_out == {"that may not start yet": 1, "that ask for no GPU": 1, "that have ended": 1}
    assert table.now_s == 3600.0


@pytest.mark.parametrize(
    ("text", "use", "told"),
    [
        (
            SACCT.replace("|big|", "|a|b|"),
            "trace",
            "line 6: more fields than in the header; .*leave JobName out",
        ),
        (SACCT.replace("AllocTRES|ReqTRES", "A|B"), "trace", "no value of gpus of any job .*AllocTRES"),
        (SQUEUE.replace("TIME_LIMIT", "X"), "state", "no value of limit_s of any job .*squeue --format"),
        (SQUEUE.replace("|3|", "|2|"), "state", "8 on 3 nodes"),
        (SACCT.replace("gres/gpu", "x"), "trace", r"no jobs that ended \(.*that ask for no GPU\)"),
        ("JOBID PARTITION NAME USER ST TIME\n 1 gpu a b R 0:00\n", "state", "in columns, .*squeue --format"),
    ],
)
def test_what_does_not_tell_enough_is_refused(tmp_path: Path, text: str, use: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        read_jobs(written(tmp_path, "slurm.txt", text), use=use)  # type: ignore[arg-type]
