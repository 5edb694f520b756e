"""Traces and scenarios say which jobs keep their GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import TraceError
from trimtab.experiments.kinds import load_any
from trimtab.experiments.training.training_inputs import build_training
from trimtab.experiments.training.training_kind import TRAINING_KIND

HEAD = "job_id,submit_s,gpus,duration_s"
ROWS = ("low,0,4,100", "high,10,4,50", "last,20,4,50")
SCENARIO = """\
kind: training
cluster: {types: {node: {accelerators: 4, memory_gib: 64}}, nodes: [{type: node, count: 1}]}
jobs: {trace: {file: jobs.csv}}
policies: [srtf]
"""


def jobs_in(folder: Path, *columns: str) -> Path:
    """The scenario, with these columns of the jobs: a name, then a value for each."""
    names = [column.split(",")[0] for column in columns]
    values = [column.split(",")[1:] for column in columns]
    lines = [",".join((row, *(v[i] for v in values))) for i, row in enumerate(ROWS)]
    (folder / "jobs.csv").write_text("\n".join((",".join((HEAD, *names)), *lines)) + "\n")
    path = folder / "mine.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize(
    ("columns", "finish_s"),
    [
        ((), [200, 60, 110]),  # srtf stops low at 10
        (("preemptible,false,,true",), [100, 150, 200]),
        (("pinned,true,no,0",), [100, 150, 200]),
        (("preemptible,1,no,yes",), [200, 60, 110]),  # high keeps what srtf gives it anyway
    ],
)
def test_columns_of_a_trace_keep_jobs_from_preemption(
    tmp_path: Path, columns: tuple[str, ...], finish_s: list[float]
) -> None:
    inputs = build_training(load_any(jobs_in(tmp_path, *columns)), 0)
    assert TRAINING_KIND.run(inputs, "srtf", "auto").finish_s == pytest.approx(finish_s)


def test_a_value_that_is_neither_is_refused(tmp_path: Path) -> None:
    scenario = load_any(jobs_in(tmp_path, "preemptible,true,maybe,true"))
    with pytest.raises(TraceError, match=r"line 3, preemptible: no value .*'maybe'.* expected true or false"):
        build_training(scenario, 0)


def test_a_scenario_draws_jobs_that_keep_their_gpus() -> None:
    values = load_any("elastic-training").content()
    values["jobs"] |= {"not_preemptible_frac": 0.3, "pinned_frac": 0.1}
    drawn, free = (build_training(load_any(v), 0).workload for v in (values, "elastic-training"))
    assert free.preemptible.all()
    assert free.pinned is None
    n = len(drawn)
    for count, frac in ((int((~drawn.preemptible).sum()), 0.3), (int(drawn.pinned.sum()), 0.1)):
        assert abs(count - frac * n) < 4 * np.sqrt(frac * (1 - frac) * n)
    assert np.array_equal(drawn.submit_s, free.submit_s)
    assert np.array_equal(drawn.work, free.work)
