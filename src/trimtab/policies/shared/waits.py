"""Expected waits for a slot, from the backlogs that nodes report."""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.view import View

OVERDUE_FRAC = 0.3  # about the mean excess over the mean of lognormal services with cv 0.36


@helper(inline=True)
def expected_wait_s(view: View, j: int) -> float:
    """Expected seconds until node j has a slot for one more request: 0 while one is free.

    Otherwise the wait is the backlog of the last report (estimates of queued work, and the rest of running
    work), minus the work of its busy slots since then, divided by its slots. For overdue work, a share
    `OVERDUE_FRAC` of its estimate is assumed to remain.
    """
    nodes, slots = view.nodes, view.nodes.slots[j]
    if nodes.in_flight[j] < slots:
        return 0.0
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    overdue_s = OVERDUE_FRAC * nodes.outstanding_s[j]
    left_s = overdue_s if left_s <= 0.0 else left_s
    return float(left_s if slots <= 1 else left_s / slots)  # a division is slower than the test
