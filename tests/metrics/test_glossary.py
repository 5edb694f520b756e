"""The catalogue, the numbers and the glossary speak of the same things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.records_builder import run_records
from trimtab.domain.decision import Reason, Status
from trimtab.metrics import METRICS, compute

GLOSSARY = (Path(__file__).parents[2] / "GLOSSARY.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split("|")] for line in GLOSSARY.splitlines() if "|" in line
]
UNIT_OF_ENDING = {"_s": "s", "_s2": "s²", "_frac": "frac", "_per_s": "1/s", "_gib": "GiB"}


def test_compute_gives_the_catalogue_in_its_order() -> None:
    assert list(compute(run_records())) == list(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_defined_once_and_alike(name: str) -> None:
    metric = METRICS[name]
    rows = [row for row in ROWS if row[0] == f"`{name}`"]
    assert len(rows) == 1
    unit, definition, formula, better = rows[0][1:]
    assert (unit, definition, better) == (metric.unit, metric.definition, metric.better or "–")
    assert formula


@pytest.mark.parametrize("name", METRICS)
def test_the_name_says_the_unit(name: str) -> None:
    ending = re.search(r"(_per_s|_s2|_s|_frac|_gib)$", name)
    if ending:
        assert METRICS[name].unit == UNIT_OF_ENDING[ending.group()]


@pytest.mark.parametrize("value", [*Status, *Reason], ids=repr)
def test_each_status_and_reason_is_explained(value: Status | Reason) -> None:
    assert [row[1] for row in ROWS if row[0] == value.name] == [str(value.value)]


def test_no_word_is_explained_twice() -> None:
    words = [row[0] for row in ROWS if row[0] not in {"word", "---", "metric", "status", "reason", "symbol"}]
    assert len(words) == len(set(words))


def test_the_default_table_fits_a_terminal() -> None:
    assert 6 <= sum(metric.headline for metric in METRICS.values()) <= 9
