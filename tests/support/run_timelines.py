"""A recorded run that is worked out on paper."""

from __future__ import annotations

import json
from typing import Any

from trimtab.chains.run_timeline import RunTimeline, made_timeline
from trimtab.jobs.run_rows import AttemptRecord, InputRecord, ResultRecord, RunRecord

T0 = 1000.0
STAGES = [
    {"name": "load", "after": {}, "concurrency": 0, "rate_per_s": 0.0},
    {"name": "draw", "after": {"load": "all"}, "concurrency": 0, "rate_per_s": 0.0},
    {"name": "check", "after": {"draw": "each"}, "concurrency": 0, "rate_per_s": 0.0},
    {"name": "join", "after": {"check": "all", "load": "all"}, "concurrency": 0, "rate_per_s": 0.0},
]
RECORD = RunRecord(
    "run_1",
    "film",
    "",
    None,
    "done",
    json.dumps({"tags": {}, "stages": STAGES}),
    "",
    T0,
    T0 + 12.0,
    "",
    False,
)


def attempt(stage: str, instance: int, sent_s: float, number: int = 1, at: int = 0) -> AttemptRecord:
    return AttemptRecord(at, stage, instance, number, "n", T0 + sent_s)


def result(
    stage: str, instance: int, end_s: float, service_s: float, *, worker: str = "w1", **changes: Any
) -> ResultRecord:
    made = ResultRecord(0, stage, instance, 1, "n", b"", 10, service_s, 0.0, 0.0, T0 + end_s, worker)
    return made._replace(**changes)


def two_pictures(record: RunRecord = RECORD) -> RunTimeline:
    """load 0.5-2 (0.5 s loading), draw[0] 2-5 on w1, draw[1] at the second attempt 6-10 on w2, join 10.5-11.

    draw[1] is sent at 2 and lost, sent again at 5.5, and takes 0.5 s to its worker. `check` has no rows: kept
    results answered it.
    """
    attempts = [
        attempt("load", 0, 0.25),
        attempt("draw", 0, 2.0),
        attempt("draw", 1, 2.0),
        attempt("draw", 1, 5.5, 2),
        attempt("join", 0, 10.25),
    ]
    results = [
        result("load", 0, 2.0, 1.0, load_s=0.5),
        result("draw", 0, 5.0, 3.0),
        result("draw", 1, 10.0, 4.0, worker="w2", attempt=2),
        result("join", 0, 11.0, 0.5),
    ]
    return made_timeline(record, [InputRecord(0, "done", b"", "")], attempts, results)
