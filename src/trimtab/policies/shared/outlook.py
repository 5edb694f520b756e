"""Completion on nodes that may fail, or that have an outage ahead, by the last three columns of `plan.price`.

These are failures per second, and begin and end of the next planned outage, as `availability` makes them.
"""

from __future__ import annotations

from typing import Final

from trimtab.compiled.kernel import helper
from trimtab.domain.view import Plan, View
from trimtab.forecast.availability import with_restarts_s

COLUMNS: Final = 3


@helper(inline=True)
def has_outlook(plan: Plan) -> bool:
    """Whether the plan says anything of failures and outages."""
    return len(plan.price) > 0 and plan.price.shape[1] >= COLUMNS


@helper(inline=True)
def with_outages_s(view: View, plan: Plan, j: int, completion_s: float) -> float:
    """Expected completion on a node that may fail, or that has an outage before the work is done."""
    now_s, found_s, first = view.context.now_s, completion_s, plan.price.shape[1] - COLUMNS
    if now_s + completion_s > plan.price[j, first + 1]:  # then it starts anew after the outage
        found_s += max(0.0, plan.price[j, first + 2] - now_s)
    return with_restarts_s(found_s, plan.price[j, first])
