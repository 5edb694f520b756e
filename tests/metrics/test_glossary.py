"""The catalogue, the numbers and the glossary speak of the same things."""

from __future__ import annotations

import re
from pathlib import Path

from support.records_builder import run_records
from trimtab.domain.requests import Reason, Status
from trimtab.metrics import METRICS, compute

GLOSSARY = (Path(__file__).parents[2] / "GLOSSARY.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split("|")] for line in GLOSSARY.splitlines() if "|" in line
]
UNIT_OF_ENDING = {"_s": "s", "_s2": "s²", "_frac": "frac", "_per_s": "1/s", "_gib": "GiB"}


def test_compute_gives_the_catalogue_in_its_order() -> None:
    assert list(compute(run_records())) == list(METRICS)


def test_each_metric_is_defined_once_and_alike() -> None:
    rows = [row for row in ROWS if row[0].strip("`") in METRICS]
    told = {row[0].strip("`"): tuple(row[1:]) for row in rows}
    assert told == {m: (of.unit, of.definition, of.formula, of.better or "–") for m, of in METRICS.items()}
    assert len(rows) == len(METRICS)
    assert [name for name, of in METRICS.items() if not of.formula] == [], "without a formula"


def test_the_name_says_the_unit() -> None:
    ending = {name: re.search(r"(_per_s|_s2|_s|_frac|_gib)$", name) for name in METRICS}
    units = {name: UNIT_OF_ENDING[found.group()] for name, found in ending.items() if found}
    assert {name: METRICS[name].unit for name in units} == units


def test_each_status_and_reason_is_explained() -> None:
    values = {(each.name, str(each.value)) for each in (*Status, *Reason)}
    names = {name for name, _ in values}
    assert sorted((row[0], row[1]) for row in ROWS if row[0] in names) == sorted(values)


def test_no_word_is_explained_twice() -> None:
    words = [row[0] for row in ROWS if row[0] not in {"word", "---", "metric", "status", "reason", "symbol"}]
    assert len(words) == len(set(words))


def test_the_default_table_fits_a_terminal() -> None:
    assert 6 <= sum(metric.headline for metric in METRICS.values()) <= 9
