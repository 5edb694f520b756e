"""Names of an earlier version that users' policies may still contain."""

from __future__ import annotations

import inspect
import re

from trimtab.domain.policy import Policy
from trimtab.errors import PolicyError

RENAMED = {
    "view.host": "view.context",
    "context.account": "context.virtual_counter",
    "context.ahead": "context.queued_cost",
    "work.charge": "work.cost",
    "work.home_idx": "work.affinity_node_idx",
    "work.stays_home": "work.pinned",
    "rehearse": "rollout",
    "rehearses": "needs = frozenset({Need.ROLLOUT})",
    "uses_rollouts": "needs = frozenset({Need.ROLLOUT})",
    "reads_accounts": "needs = frozenset({Need.VIRTUAL_COUNTERS})",
    "reads_virtual_counters": "needs = frozenset({Need.VIRTUAL_COUNTERS})",
    "accounts_shares": "needs = frozenset({Need.DOMINANT_SHARES, Need.VIRTUAL_COUNTERS})",
    "counts_dominant_shares": "needs = frozenset({Need.DOMINANT_SHARES, Need.VIRTUAL_COUNTERS})",
    "reads_prefix": "needs = frozenset({Need.PREFIX})",
}
_READ = re.compile(r"(?<![\w.])ranking\[[^\]]*\](?!\s*=(?!=))")  # it holds records; a plain write works
_OLD = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}\b" for name in RENAMED))


def check_names(policy: Policy) -> None:
    """Raise PolicyError for the first name in a policy's source that trimtab has renamed."""
    cls = type(policy)
    if cls.__module__.startswith("trimtab.policies."):
        return
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):  # made at run time: it has no source
        return
    for number, line in enumerate(lines, first):
        code = line.partition("#")[0]
        place = f"{inspect.getsourcefile(cls)}, line {number}"
        if old := _OLD.search(code):
            raise PolicyError(f"{cls.__name__} uses {old[0]!r}, now {RENAMED[old[0]]!r} ({place})")
        if read := _READ.search(code):
            new = read[0].replace("ranking[", "ranking.node_idx[")
            raise PolicyError(f"{cls.__name__} reads {read[0]!r}, now {new!r} ({place})")
