"""Tables in and out: rows and blocks, columns that go along, and what has no column."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from trimtab.chains import Chain, blocks, chain, run, stage
from trimtab.chains.data_tables import read_table
from trimtab.chains.input_files import read_inputs
from trimtab.cli.app import app
from trimtab.clusters.in_process import InProcess
from trimtab.errors import UsageError

ROWS = pl.DataFrame(
    {
        "id": [7, 8, 9],
        "text": ["a fox", "12", "an owl"],
        "at": [datetime(2026, 1, day) for day in (1, 2, 3)],
        "tags": [["x"], [], ["y", "z"]],
    }
)
CODE = """
import polars as pl
from trimtab.chains import chain, stage

@stage(retries=0)
def told(text: str, times: int = 2) -> dict:
    if text == "12":
        raise ValueError("a number")
    return {"id": len(text), "loud": text.upper() * times}

@chain
def speak(text: str, times: int = 2):
    return told(text, times)

@stage
def doubled(block: pl.DataFrame) -> pl.DataFrame:
    return block.select("id", twice=pl.col("id") * 2, rows=pl.len())

@chain
def by_block(block: pl.DataFrame):
    return doubled(block)
"""


@stage
def measured(text: str) -> int:
    return len(text)


@chain
def lengths(text: str) -> Any:
    return measured(text)


@stage
def parts(table: pl.DataFrame) -> list[pl.DataFrame]:
    return blocks(table, 2)


@stage
def summed(block: pl.DataFrame) -> int:
    return int(block["id"].sum())


@chain
def in_blocks(table: pl.DataFrame) -> Any:
    return summed.map(parts(table))


@chain
def by_column(table: pl.DataFrame) -> Any:
    return summed.map(table)


def ran(folder: Path, file: Path, *options: str, code: int = 0) -> Any:
    file_of_chains = folder / f"tables_{folder.name}.py"  # a module of its own
    file_of_chains.write_text(CODE)
    name = options[0]
    arguments = [
        "chain",
        "run",
        f"{file_of_chains}:{name}",
        "--input",
        str(file),
        "--on",
        "in-process",
    ]
    done = CliRunner().invoke(app, [*arguments, "--journal", str(folder / "j"), *options[1:]])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_a_table_gives_rows_and_its_columns_stand_before_the_outputs(tmp_path: Path, suffix: str) -> None:
    given = ROWS.drop("tags") if suffix == "csv" else ROWS
    file, out = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    {"parquet": given.write_parquet, "arrow": given.write_ipc, "csv": given.write_csv}[suffix](file)
    done = ran(tmp_path, file, "speak", "--out", str(out), code=4)
    assert "input of row 2: told" in done.stderr
    found = read_table(out, Chain("any", {}, (), None))
    louder = pl.Series(["A FOX" * 2, "AN OWL" * 2])
    wanted = given[[0, 2]].with_columns(output_id=pl.Series([5, 6]), loud=louder)
    if suffix == "csv":
        found = found.with_columns(pl.col("at").str.to_datetime())
    assert_frame_equal(found, wanted, check_dtypes=suffix != "csv")


def test_a_value_of_csv_that_is_no_number_refuses_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("n,x\n1,2.5\ntwo,1\n3,no\n4,7\n")
    found = read_inputs(tmp_path / "in.csv", Chain("any", {"n": int, "x": float}, (), None))
    assert found.values == [{"n": 1, "x": 2.5}, {"n": 4, "x": 7.0}]
    assert found.lines == [1, 4]
    assert [problem.value for problem in found.problems] == ["two", "no"]


def test_blocks_of_rows_are_inputs_and_outputs(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    ran(tmp_path, tmp_path / "in.parquet", "by_block", "--block-rows", "2", "--out", str(out))
    assert pl.read_parquet(out).rows() == [(7, 14, 2), (8, 16, 2), (9, 18, 1)]


def test_a_table_without_the_chains_input_says_so(tmp_path: Path) -> None:
    pl.DataFrame({"id": [1], "txet": ["a"]}).write_parquet(tmp_path / "in.parquet")
    done = ran(tmp_path, tmp_path / "in.parquet", "speak", code=2)
    assert (
        "in.parquet: text: has no column for an input of the chain (got 'id, txet'); expected" in done.stderr
    )
    (tmp_path / "bad.parquet").write_text("no")
    assert "bad.parquet: cannot be read" in ran(tmp_path, tmp_path / "bad.parquet", "speak", code=2).stderr
    pl.DataFrame({"text": ["a", None, "b"]}).write_parquet(tmp_path / "in.parquet")
    done = ran(tmp_path, tmp_path / "in.parquet", "speak", code=2)
    assert "row 2, text: a value of another type; expected str" in " ".join(done.stderr.split())
    assert [json.loads(line)["output"]["id"] for line in done.stdout.splitlines()] == [1, 1]
    (tmp_path / "in.jsonl").write_text('"a"\n')
    done = ran(tmp_path, tmp_path / "in.jsonl", "by_block", "--block-rows", "2", code=2)
    assert "--block-rows: has no blocks of rows" in done.stderr


def test_a_data_frame_is_inputs_in_python_and_results_are_one(tmp_path: Path) -> None:
    table = run(lengths, ROWS, on=InProcess()).table()
    assert_frame_equal(table, ROWS.with_columns(output=pl.Series([5, 2, 6])))
    assert_frame_equal(run(lengths, ROWS.lazy(), on=InProcess()).table(), table)
    assert run(lengths, ["a", "bc"], on=InProcess()).table().rows() == [("a", 1), ("bc", 2)]
    handle = run(lengths, iter(["a", "bc"]), on=InProcess())
    assert handle.table().rows() == [(1,), (2,)]  # what is not in memory is not kept


def test_a_resumed_run_has_its_inputs_from_the_journal(tmp_path: Path) -> None:
    run(lengths, ["a", "bc"], on=InProcess(), journal=tmp_path, key="k").wait()
    assert run(lengths, [], on=InProcess(), journal=tmp_path, key="k").table().rows() == [("a", 1), ("bc", 2)]


def test_a_table_in_a_chain_is_mapped_over_in_blocks_never_by_columns() -> None:
    (result,) = run(in_blocks, [{"table": ROWS}], on=InProcess()).wait()
    assert result.value == [15, 9]
    (result,) = run(by_column, [{"table": ROWS}], on=InProcess()).wait()
    assert "is a table, which is mapped over in blocks" in str(result.failure)


def test_an_output_that_has_no_column_is_named(tmp_path: Path) -> None:
    @stage
    def odd(n: int) -> Any:
        return object if n else 1.5

    @chain
    def odds(n: int) -> Any:
        return odd(n)

    with pytest.raises(UsageError, match=r"output: has no type of a column \(got 'float, type'\)"):
        run(odds, [0, 1], on=InProcess()).table()


@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dataset_of_ray_data_goes_in_and_comes_out() -> None:
    pytest.importorskip("pyarrow", reason="the extra `ray-data` is not installed")
    import ray.data

    from trimtab.chains.data_tables import dataset_of

    dataset = ray.data.from_arrow(ROWS.to_arrow()).map_batches(lambda batch: batch, batch_format="pyarrow")
    made = dataset_of(run(lengths, dataset, on=InProcess()).table())
    assert [(row["id"], row["output"]) for row in made.take_all()] == [(7, 5), (8, 2), (9, 6)]
    by_block = run(in_blocks, dataset, on=InProcess(), block_rows=3).wait()
    assert [result.value for result in by_block] == [[15, 9]]
