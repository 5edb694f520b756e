"""Metrics of hierarchical queues: shares and guarantees, what was taken back, fairness; a row per queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.metrics.imbalance import jain_index, relative_speed
from trimtab.metrics.run_records import QueueRecords, Records
from trimtab.metrics.statistics import mean, percentiles


def queue_metrics(records: Records) -> dict[str, float]:
    """Preempted requests, the worst time below a guarantee, and fairness; nan where there are no queues."""
    queues = records.queues
    if queues is None:
        return dict.fromkeys(
            ("preempted", "preempted_lost_s", "queue_short_max_s", "jain_queues"), float("nan")
        )
    return {
        "preempted": float(queues.preempted[0]),
        "preempted_lost_s": float(queues.lost_s[0]),
        "queue_short_max_s": float(queues.short_s.max()),
        "jain_queues": _jain(records, queues),
    }


def _jain(records: Records, queues: QueueRecords) -> float:
    """Jain's index over leaves that had requests, of the mean relative speed of these."""
    rows = records.requests
    leaf = queues.leaf_of[rows.tenant_idx[rows.arrived]]
    count = np.bincount(leaf, minlength=len(queues.paths))
    total = np.bincount(leaf, relative_speed(rows)[rows.arrived], len(queues.paths))
    return jain_index(total[count > 0] / count[count > 0])


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue over a run, with all queues below it."""

    queue: str
    requests: int  # that arrived
    finished: int
    queueing_mean_s: float  # of those that took a slot
    queueing_p99_s: float
    share_mean_frac: float  # its dominant share of what all nodes have, over the window
    guarantee_frac: float
    limit_frac: float
    short_s: float  # time below its guarantee with held work that it would take
    preempted: int  # times that its requests were taken back
    lost_s: float  # slot-seconds that these had held


def queue_summaries(records: Records) -> list[QueueSummary]:
    """The queues in preorder, without the root; empty where there are none."""
    queues, rows = records.queues, records.requests
    if queues is None:
        return []
    leaf, window_s = queues.leaf_of[rows.tenant_idx], records.window_s
    waited_s = rows.start_s - rows.arrival_s
    made = []
    for q in range(1, len(queues.paths)):
        mine = (leaf >= q) & (leaf < queues.end[q])
        waits = waited_s[mine & np.isfinite(waited_s)]
        made.append(
            QueueSummary(
                queue=queues.paths[q],
                requests=int((mine & rows.arrived).sum()),
                finished=int((mine & rows.finished).sum()),
                queueing_mean_s=mean(waits),
                queueing_p99_s=percentiles(waits, 99)[0],
                share_mean_frac=float(queues.share_s[q]) / window_s if window_s > 0.0 else float("nan"),
                guarantee_frac=float(queues.guarantee_frac[q]),
                limit_frac=float(queues.limit_frac[q]),
                short_s=float(queues.short_s[q]),
                preempted=int(queues.preempted[q]),
                lost_s=float(queues.lost_s[q]),
            )
        )
    return made
