"""The folder of results: numbers, tables, records and the page, each written atomically.

All files are written under temporary names in the same folder before the first is renamed, so that
a full disk or an interruption leaves the results of an earlier run unchanged.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from trimtab.report.case_page import case_page
from trimtab.report.comparison_page import comparison_page
from trimtab.report.packed_text import json_text
from trimtab.report.run_page import run_page
from trimtab.report.tuning_page import tuning_page
from trimtab.report.whole_files import part_of, refusals_of, size_bytes, stage_bytes, write_text

if TYPE_CHECKING:
    from trimtab.experiments.case import CaseStudy
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.serving.run import Run
    from trimtab.experiments.tuning import Tuning

RESULTS: Final = "results.json"
TABLE: Final = "comparison.csv"
REQUEST_FILE: Final = "requests.parquet"
NODE_FILE: Final = "nodes.parquet"
LINK_FILE: Final = "links.parquet"
STAGE_FILE: Final = "stages.parquet"
REPORT: Final = "report.html"
TUNED: Final = "tuned.yaml"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file, or a folder with all its files."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """The written files, the page first."""

    files: tuple[WrittenFile, ...]


def write_results(comparison: Comparison, out: Path, *, with_report: bool = True) -> Written:
    """Write results.json, comparison.csv, the records and, unless unwanted, report.html.

    The records come last: they move from the comparison's work folder, which is whole until then, and is
    removed when all is done. Raises UsageError if `out` cannot be written to, or its disk is full.
    """
    with refusals_of(out), _Staging(out) as staging:
        if with_report:
            staging.text(REPORT, comparison_page(comparison))
        staging.text(RESULTS, json_text(comparison.to_dict()))
        comparison.table().write_csv(staging.part(TABLE))
        written = staging.commit()
        if comparison.folder is None:
            return written
        records = out / comparison.items_key
        _replace_folder(comparison.folder.gathered(), records)
        comparison.folder.remove()
        return Written((*written.files, _written(records)))


def write_run(run: Run, out: Path, *, with_report: bool = True) -> Written:
    """Write results.json, requests.parquet, nodes.parquet and, unless unwanted, report.html of one run.

    Raises UsageError if `out` cannot be written to, or its disk is full.
    """
    with refusals_of(out), _Staging(out) as staging:
        if with_report:
            staging.text(REPORT, run_page(run))
        staging.text(RESULTS, json_text(run.to_dict()))
        run.requests.write_parquet(staging.part(REQUEST_FILE), compression="zstd")
        run.nodes.write_parquet(staging.part(NODE_FILE), compression="zstd")
        if run.links is not None:
            run.links.write_parquet(staging.part(LINK_FILE), compression="zstd")
        if run.stages is not None:
            run.stages.write_parquet(staging.part(STAGE_FILE), compression="zstd")
        return staging.commit()


def write_tuning(tuning: Tuning, out: Path, *, with_report: bool = True) -> Written:
    """Write tuned.yaml, results.json and, unless unwanted, report.html; remove what was kept to go on from.

    Raises UsageError if `out` cannot be written to, or its disk is full.
    """
    head = f"# Written by `trimtab tune`: {tuning.in_words()}.\n# Give this file as a policy.\n"
    with refusals_of(out), _Staging(out) as staging:
        if with_report:
            staging.text(REPORT, tuning_page(tuning))
        staging.text(RESULTS, json_text(tuning.to_dict()))
        content = yaml.safe_dump(tuning.content(), sort_keys=False, allow_unicode=True)
        staging.text(TUNED, head + content)
        written = staging.commit()
    for folder in tuning.folders:
        folder.remove()
    return written


def write_case(study: CaseStudy, out: Path) -> Written:
    """Write results.json and report.html of a case study.

    Raises UsageError if `out` cannot be written to, or its disk is full.
    """
    with refusals_of(out), _Staging(out) as staging:
        staging.text(REPORT, case_page(study))
        staging.text(RESULTS, json_text(study.to_dict()))
        return staging.commit()


def write_comparison_page(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report of a comparison as one HTML file that opens offline. Raises UsageError."""
    return write_text(Path(path), comparison_page(comparison))


def write_run_page(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write the report of a run as one HTML file that opens offline. Raises UsageError."""
    return write_text(Path(path), run_page(run))


class _Staging:
    """Files of one result, under temporary names until `commit`; deleted without it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._names: list[str] = []

    def __enter__(self) -> _Staging:
        self._out.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            part_of(self._out / name).unlink(missing_ok=True)

    def part(self, name: str) -> Path:
        """Temporary path of the file `name`."""
        self._names.append(name)
        return part_of(self._out / name)

    def text(self, name: str, text: str) -> None:
        """Write `text` as the file `name`."""
        stage_bytes(self._out / name, text.encode())
        self._names.append(name)

    def commit(self) -> Written:
        """Rename all files to their final names, replacing earlier ones."""
        for name in self._names:
            os.replace(part_of(self._out / name), self._out / name)
        paths = [self._out / name for name in self._names]
        self._names.clear()
        return Written(tuple(_written(path) for path in paths))


def _written(path: Path) -> WrittenFile:
    return WrittenFile(path, size_bytes(path))


def _replace_folder(source: Path, target: Path) -> None:
    """Rename; an old folder of that name is moved first, restored on failure, and deleted last."""
    old = part_of(target.with_name(f"{target.name}-old"))
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(source, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
