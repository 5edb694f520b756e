"""The protocol between a job's processes and the run that started them. Standard library only.

A job runs as *generations*: the processes between two changes of its GPUs. Each process is a *rank* and gets
these variables, torchrun's among them:

    RANK, WORLD_SIZE                  its number in the generation, and how many there are
    LOCAL_RANK, LOCAL_WORLD_SIZE      the same on its node
    GROUP_RANK                        number of its node among the job's
    MASTER_ADDR, MASTER_PORT          where rank 0 listens
    TRIMTAB_JOB, TRIMTAB_GENERATION   what it belongs to; generations count from 1
    TRIMTAB_CHECKPOINTS               folder for the checkpoints of this generation
    TRIMTAB_RESUME                    checkpoint to go on from; empty = none
    TRIMTAB_FENCE                     file with the newest generation: one that is older writes no checkpoint
    TRIMTAB_REPORT_FD                 descriptor for reports, a JSON object a line
    TRIMTAB_SAMPLES, TRIMTAB_BATCH    samples to train on in all, and in a step, of all ranks together
    TRIMTAB_LOCAL_BATCH               samples of a rank in one pass
    TRIMTAB_ACCUMULATION              further passes of a rank before each step
    TRIMTAB_LEARNING_RATE_FACTOR      by which the learning rate is multiplied for this batch
    TRIMTAB_CHECKPOINT_PERIOD_S       seconds between two checkpoints; 0 = only when it is stopped
    TRIMTAB_SLOTS                     its node's slots that the job has, such as 0,2

A report has `step` and `samples` (both since the job's beginning, of all ranks) and, where known, `step_s`,
`sync_s`, `grad_sqr` and `grad_var` (squared norm and variance of the gradient at the job's batch). `stopped`
is the step at which a rank's training ended, `error` a problem in words. `finished` says that all samples
were trained on and the last checkpoint is kept: the program may go on as long as it likes. `quiet_s`: the
rank's next report of steps may be so long in coming, as it writes or evaluates.

SIGTERM asks a generation to stop: its ranks agree on a step, rank 0 writes a checkpoint, all end with
PREEMPTED. 0 = the job is done.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

PREEMPTED: Final = 75  # exit codes; these are those of sysexits.h
NOT_SAVED: Final = 74  # the checkpoint could not be written
STALE: Final = 76  # a newer generation of the job has begun
NO_START: Final = 127  # its command could not be started

GO_ON, SAVE, STOP = 0, 1, 2  # what a rank wants after a step; the largest of all ranks holds

LINE_BYTES: Final = 4096  # of a report: so much a pipe takes at once, whole
_NUMBERS: Final = ("step_s", "sync_s", "grad_sqr", "grad_var")


class Report(NamedTuple):
    """One line of a rank. Numbers that it does not say are nan, steps -1."""

    step: int
    samples: int
    step_s: float
    sync_s: float
    grad_sqr: float
    grad_var: float
    stopped: int
    error: str
    finished: bool = False
    quiet_s: float = math.nan


def read_report(line: bytes) -> Report:
    """A report. Raises ValueError that says what is wrong with the line."""
    try:
        told = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{_short(line)} is no JSON") from error
    if not isinstance(told, dict):
        raise ValueError(f"{_short(line)} is no JSON object")
    step, samples, stopped = (_whole(told, name) for name in ("step", "samples", "stopped"))
    step_s, sync_s, grad_sqr, grad_var = (_number(told, name) for name in _NUMBERS)
    is_finished, quiet_s = bool(told.get("finished")), _number(told, "quiet_s")
    problem = str(told.get("error", ""))
    return Report(step, samples, step_s, sync_s, grad_sqr, grad_var, stopped, problem, is_finished, quiet_s)


def report_line(**told: Any) -> bytes:
    """A line with these values."""
    known = {name: value for name, value in told.items() if value == value}  # a nan is not known
    return json.dumps(known).encode()[: LINE_BYTES - 1] + b"\n"


def _whole(told: dict[str, Any], name: str) -> int:
    value = told.get(name, -1)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value != int(value) or value < -1:
        raise ValueError(f"{name} is {value!r}; expected a whole number from 0 on")
    return int(value)


def _number(told: dict[str, Any], name: str) -> float:
    value = told.get(name, math.nan)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == math.inf:
        raise ValueError(f"{name} is {value!r}; expected a finite number")
    return float(value)


def _short(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))
