"""The ledger: sums, refusals, other names and contents, processes at once, a kill in between."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.errors import UsageError
from trimtab.privacy.accounting import epsilon_of, rho_of
from trimtab.privacy.spending_ledger import Spending, content_hash, spend, spent

RHO = rho_of(1.0, 1e-6)
ONE = Spending("log", "a1", "trace share", "row", 1.0, 2e-6, "2026-01-01T00:00:00+00:00", RHO, 1e-6)


def test_costs_of_releases_add_up_before_they_are_converted() -> None:
    epsilon, delta = spent([ONE] * 4)
    assert epsilon == pytest.approx(epsilon_of(4 * RHO, 1e-6))
    assert epsilon < 4.0
    assert delta == pytest.approx(5e-6)


def test_what_was_accounted_for_elsewhere_adds_its_epsilon() -> None:
    other = replace(ONE, epsilon=0.7, rho=None, delta=1e-7, delta_of_names=0.0)
    epsilon, delta = spent([ONE, other])
    assert epsilon == pytest.approx(epsilon_of(RHO, 1e-6) + 0.7)
    assert delta == pytest.approx(2.1e-6)


def test_over_budget_is_refused_with_what_is_left_and_enters_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.json"
    assert spend(path, ONE, 2.0).epsilon <= 1.0
    before = path.read_text()
    too_much = replace(ONE, epsilon=3.0, rho=rho_of(3.0, 1e-6))
    with pytest.raises(
        UsageError, match=r"ε 1 of 2 is spent.*expected at most 1\.\d+, which is left"
    ) as refused:
        spend(path, too_much, None)
    assert path.read_text() == before
    left = float(str(refused.value).partition("at most ")[2].partition(",")[0])
    done = spend(path, replace(ONE, epsilon=left, rho=rho_of(left, 1e-6)), None)
    assert 1.95 < done.epsilon <= 2.0
    assert done.releases == 2
    with pytest.raises(UsageError, match=r"ε 1\.99\d* of 2 is spent"):
        spend(path, ONE, None)


@pytest.mark.parametrize("other", [{"source": "copy"}, {"sha256": "b2"}])
def test_a_copy_and_a_grown_log_are_the_same_source(tmp_path: Path, other: dict[str, str]) -> None:
    path = tmp_path / "ledger.json"
    spend(path, ONE, 1.2)
    with pytest.raises(UsageError, match="is spent"):
        spend(path, replace(ONE, **other), None)
    assert spend(path, replace(ONE, source="else", sha256="c3"), None).releases == 1


def test_a_budget_is_fixed_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    spend(path, ONE, 4.0)
    spend(path, ONE, 4.0)
    with pytest.raises(UsageError, match="fixed at its first release"):
        spend(path, ONE, 40.0)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"version": 1, "budgets": {}, "entries": [{"source": "a"}]}']
)
def test_what_is_no_ledger_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"ledger\.json"):
        spend(path, ONE, None)
    assert path.read_text() == text


def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"version": 2, "budgets": {}, "entries": []}')
    with pytest.raises(UsageError, match="another version"):
        spend(path, ONE, None)


def _spend_five(path: str) -> None:
    for _ in range(5):
        spend(Path(path), ONE, 100.0)


def test_processes_that_spend_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spend_five, args=(str(path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(json.loads(path.read_text())["entries"]) == 10


def _spend_and_die(path: str) -> None:
    spend(Path(path), ONE, 100.0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_who_is_killed_after_spending_has_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    process = multiprocessing.get_context("spawn").Process(target=_spend_and_die, args=(str(path),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert spend(path, ONE, None).releases == 2  # and the lock is free


def test_a_content_is_known_wherever_it_lies(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.csv").write_text(text)
    hashes = [content_hash(tmp_path / name) for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    assert content_hash(tmp_path / "a" / "log.csv") == content_hash(tmp_path / "b" / "log.csv")
