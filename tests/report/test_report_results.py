from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import polars as pl
import pytest

import trimtab as tt
from support.synthetic import comparison
from trimtab.errors import UsageError
from trimtab.experiments.compare import Comparison
from trimtab.experiments.compare.tasks import Task
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.serving.run import simulate
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.report.results_folder import json_text, write_results, write_run


def with_records(out: Path, text: str = "rows") -> Comparison:
    folder = Workfolder(out, [Task(SERVING, tt.scenario("tiny"), 0, None, "random", "random", key="abc")])
    (folder.path / "abc.parquet").write_text(text)
    (folder.path / "abc.pickle").touch()
    return comparison(("random", "power-of-d"), (0, 1), nodes=4, bins=5, folder=folder)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refuse(error: int):  # type: ignore[no-untyped-def]
    def refused(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    return refused


def test_everything_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_results(with_records(tmp_path), tmp_path)
    assert names_in(tmp_path) == {"results.json", "comparison.csv", "report.html", "requests"}
    assert (tmp_path / "requests" / "random" / "seed-0.parquet").read_text() == "rows"


def test_sizes_and_places_are_told(tmp_path: Path) -> None:
    written = write_results(with_records(tmp_path), tmp_path)
    sizes = {file.path.name: file.size_bytes for file in written.files}
    assert sizes.pop("requests") == len("rows")
    assert sizes == {name: (tmp_path / name).stat().st_size for name in sizes}
    assert len(sizes) == 3


def test_the_json_is_the_comparison_and_strict(tmp_path: Path) -> None:
    table = comparison(("random",), (0, 1))  # deadline_satisfied_frac is nan there
    write_results(table, tmp_path, with_report=False)
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == json.loads(json_text(table.to_dict()))
    assert not (tmp_path / "report.html").exists()


def test_the_csv_is_the_table(tmp_path: Path) -> None:
    table = comparison(("random", "power-of-d"), (0, 1))
    write_results(table, tmp_path, with_report=False)
    read = pl.read_csv(tmp_path / "comparison.csv")
    assert read.columns == ["policy", "metric", "mean", "ci95"]
    assert read.height == table.table().height


def test_results_of_an_earlier_run_are_replaced(tmp_path: Path) -> None:
    write_results(with_records(tmp_path, "old"), tmp_path, with_report=False)
    (tmp_path / "requests" / "stale.parquet").touch()
    write_results(with_records(tmp_path, "new"), tmp_path, with_report=False)
    assert names_in(tmp_path / "requests") == {"random"}
    assert (tmp_path / "requests" / "random" / "seed-0.parquet").read_text() == "new"
    assert names_in(tmp_path) == {"results.json", "comparison.csv", "requests"}


def test_a_folder_below_a_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="writable folder") as caught:
        write_results(comparison(("random",), (0,)), tmp_path / "file" / "out")
    assert caught.value.value == str(tmp_path / "file" / "out")


def test_a_full_disk_leaves_the_earlier_results_and_the_unfinished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(with_records(tmp_path, "old"), tmp_path, with_report=False)
    before = (tmp_path / "results.json").read_text()
    later = with_records(tmp_path, "new")
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(UsageError, match="No space left on device"):
        write_results(later, tmp_path)
    assert (tmp_path / "results.json").read_text() == before
    assert (tmp_path / "requests" / "random" / "seed-0.parquet").read_text() == "old"
    assert names_in(tmp_path) == {"results.json", "comparison.csv", "requests", ".unfinished"}
    assert (tmp_path / ".unfinished" / "abc.parquet").read_text() == "new"


@pytest.mark.parametrize("last", ["results.json", "comparison.csv", "requests"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_whatever_stops_the_last_steps_the_records_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, error: BaseException
) -> None:
    write_results(with_records(tmp_path, "old"), tmp_path, with_report=False)
    later, rename = with_records(tmp_path, "new"), os.replace

    def stopped(source: Path, target: Path) -> None:
        if Path(target).name == last:
            monkeypatch.undo()
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write_results(later, tmp_path, with_report=False)
    assert (tmp_path / "requests" / "random" / "seed-0.parquet").read_text() == "old"
    assert names_in(tmp_path / ".unfinished") >= {"abc.pickle", "abc.parquet"}
    write_results(later, tmp_path, with_report=False)
    assert (tmp_path / "requests" / "random" / "seed-0.parquet").read_text() == "new"
    assert names_in(tmp_path) == {"results.json", "comparison.csv", "requests"}


def test_a_run_is_written_whole(tmp_path: Path) -> None:
    run = simulate("tiny", "random", mode="interpreted")
    written = write_run(run, tmp_path)
    assert names_in(tmp_path) == {"results.json", "requests.parquet", "nodes.parquet", "report.html"}
    assert {file.path.name for file in written.files} == names_in(tmp_path)
    assert pl.read_parquet(tmp_path / "requests.parquet").height == len(run.inputs.requests)
    metrics = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)["metrics"]
    assert metrics["completion_mean_s"] == run.metrics["completion_mean_s"]
