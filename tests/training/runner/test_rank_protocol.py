"""What a rank and its run agree on: samples, reports, checkpoints."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from trimtab.training.elastic import SAVE, ElasticJob
from trimtab.training.runner.checkpoint_files import (
    CheckpointRefused,
    StaleGeneration,
    generation_folder,
    newest_checkpoint,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from trimtab.training.runner.rank_protocol import read_report, report_line


def rank(rank: int, world: int, samples: int, batch: int, at: int = 0) -> ElasticJob:
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world)}
    made = ElasticJob(samples, batch, environment=variables)
    made.samples = at
    return made


@pytest.mark.parametrize("worlds", [[1], [3, 1, 4], [2, 5, 5, 1]])
def test_each_sample_is_one_ranks_once_whatever_the_number_of_ranks(worlds: list[int]) -> None:
    """Steps with changing worlds, and a last step that is smaller than the number of ranks."""
    seen: list[int] = []
    at, step = 0, 0
    while at < 43:
        world = worlds[step % len(worlds)]
        ranks = [rank(r, world, 43, 6, at) for r in range(world)]
        seen += [number for r in ranks for number in r.shard()]
        at, step = at + ranks[0].step_samples, step + 1
    assert sorted(seen) == list(range(43))


def test_a_report_says_what_it_knows() -> None:
    report = read_report(report_line(step=3, samples=24, step_s=0.5, grad_sqr=math.nan))
    assert (report.step, report.samples, report.step_s, report.stopped) == (3, 24, 0.5, -1)
    assert math.isnan(report.grad_sqr)
    assert math.isnan(report.sync_s)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"step 3", "no JSON"),
        (b"[3]", "no JSON object"),
        (b'{"step": "3"}', "step is '3'; expected a whole number"),
        (b'{"step": 3, "step_s": true}', "step_s is True; expected a finite number"),
        (b'{"step": 1e400}', "step is inf; expected a whole number from 0 on"),
        (b'{"step": 3, "samples": -3}', "samples is -3; expected a whole number from 0 on"),
        (b'{"step": 3, "sync_s": 1e400}', "sync_s is inf; expected a finite number"),
    ],
)
def test_what_is_no_report_is_named(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_report(line)


def written(root: Path, generation: int, step: int, text: str = "weights") -> Path:
    def write(folder: Path) -> None:
        (folder / "state").write_text(text)

    return write_checkpoint(generation_folder(root, generation), generation, step, 8 * step, write, None)


def test_the_newest_good_checkpoint_is_found(tmp_path: Path) -> None:
    written(tmp_path, 1, 90)
    written(tmp_path, 2, 120)
    part = generation_folder(tmp_path, 2) / "step-000000000150.part"
    part.mkdir()
    found, problems = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.generation, found.step, found.samples, problems) == (2, 120, 960, [])
    prune(tmp_path, keep=1)
    assert [path.name for path in tmp_path.glob("g*/step-*[0-9]")] == ["step-000000000120"]


def test_a_truncated_checkpoint_is_named_and_the_one_before_taken(tmp_path: Path) -> None:
    written(tmp_path, 1, 90)
    newest = written(tmp_path, 1, 120)
    os.truncate(newest / "state", 3)
    found, problems = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 90
    assert problems == [f"{newest / 'state'}: truncated, 3 bytes; expected 7 bytes"]
    assert newest_checkpoint(tmp_path) == (found, [])  # it is set aside


def test_other_content_of_the_same_length_is_refused(tmp_path: Path) -> None:
    newest = written(tmp_path, 1, 120)
    (newest / "state").write_text("WEIGHTS")
    with pytest.raises(CheckpointRefused, match="other content"):
        read_checkpoint(newest)


def test_a_checkpoint_of_another_generation_is_refused(tmp_path: Path) -> None:
    newest = written(tmp_path, 3, 120)
    manifest = newest / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "generation": 2}))
    found, problems = newest_checkpoint(tmp_path)
    assert found is None
    assert problems == [f"{newest}: written by generation 2, another than its folder's"]


def test_an_older_generation_writes_no_checkpoint(tmp_path: Path) -> None:
    fence = tmp_path / "fence"
    fence.write_text("3")
    folder = generation_folder(tmp_path, 2)
    with pytest.raises(StaleGeneration, match="generation 3 of the job has begun, this is 2"):
        write_checkpoint(folder, 2, 7, 56, lambda part: (part / "state").write_text("x"), fence)
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = generation_folder(tmp_path, 1)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(folder, 1, 7, 56, lambda _: Path("/dev/full").write_text("x"), None)
    assert list(folder.iterdir()) == []


def test_a_disk_that_stays_full_is_one_problem(tmp_path: Path) -> None:
    """Two checkpoints fail: the run tells equal errors once."""
    reader, writer = os.pipe()
    told = {"TRIMTAB_CHECKPOINTS": str(tmp_path), "TRIMTAB_REPORT_FD": str(writer)}
    made = ElasticJob(100, 1, environment=told)
    for _ in range(2):
        made.step_done()
        made.obey(SAVE, lambda _: Path("/dev/full").write_text("x"))
    os.close(writer)
    with open(reader, "rb") as lines:
        errors = [report.error for report in map(read_report, lines) if report.error]
    assert errors == [f"{tmp_path}: checkpoint not written: No space left on device"] * 2


def test_outside_of_a_run_a_job_is_one_rank_and_its_program_goes_on() -> None:
    alone = ElasticJob(20, 8, environment={})
    while not alone.is_done:
        assert alone.wish() == 0
        alone.step_done()
    assert (alone.step, alone.samples) == (3, 20)
    alone.finish(lambda folder: None)
