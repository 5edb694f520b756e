"""What policies change against a rule, on workloads that no training saw: mean and p99, with the losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from trimtab.errors import UsageError
from trimtab.learn.drawn_workloads import Floats, Workloads, figures_of
from trimtab.metrics import mean_ci95
from trimtab.policies import canonical, find

UNSEEN: Final = 1_000  # number of the first workload to judge by; training draws from the first hundred
WORSE_FRAC: Final = 0.05  # a mean that is this much above the rule's is a loss


@dataclass(frozen=True, slots=True)
class Change:
    """A relative change over the workloads: of the geometric mean, with its 95 % interval; the worst one."""

    frac: float
    low_frac: float
    high_frac: float
    worst_frac: float


@dataclass(frozen=True, slots=True)
class Judged:
    """One policy against the rule on the same workloads."""

    policy: str
    mean: Change
    p99: Change
    worse_share: float  # of workloads whose mean is more than `WORSE_FRAC` above the rule's

    def to_dict(self) -> dict[str, Any]:
        """The values for a file."""
        return asdict(self)


def judged(
    policies: Sequence[str],
    workloads: Workloads,
    numbers: Sequence[int],
    *,
    rule: str = "late-binding",
    pool: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Judged]:
    """Each policy against the rule on workloads of these numbers, at least two. Raises UsageError."""
    if len(numbers) < 2:
        raise UsageError("too few", field="workloads", value=len(numbers), expected="at least 2")
    deciders = [find(policy) for policy in (rule, *policies)]
    rows = [(workloads, i, decider) for i in numbers for decider in deciders]
    run = map if pool is None else pool.map
    found = []
    for figures in run(figures_of, *zip(*rows, strict=True)):
        found.append(figures)
        if progress is not None:
            progress(len(found), len(rows))
    table = np.reshape([(f.mean, f.p99) for f in found], (len(numbers), len(deciders), 2))
    logs = np.array([[_logs(one, row[0]) for one in row[1:]] for row in table])  # [workloads, policies, 2]
    return [
        Judged(
            canonical(policy),
            change(logs[:, k, 0]),
            change(logs[:, k, 1]),
            float((logs[:, k, 0] > math.log1p(WORSE_FRAC)).mean()),
        )
        for k, policy in enumerate(policies)
    ]


def _logs(found: Floats, rule: Floats) -> list[float]:
    return [math.log(a / b) for a, b in zip(found.tolist(), rule.tolist(), strict=True)]


def change(logs: Floats) -> Change:
    """Of logarithms of ratios, [workloads]."""
    found = mean_ci95(logs)
    half = math.inf if found.ci95 is None else found.ci95
    ends = (found.mean, found.mean - half, found.mean + half, float(logs.max()))
    return Change(*(math.expm1(x) for x in ends))
