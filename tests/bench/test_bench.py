"""Every benchmark runs, on tiny sizes, and gives finite figures; nothing here depends on how fast it was."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bench.__main__ import main
from bench.catalogue import BENCHMARKS
from bench.everything_on import COUNTED
from bench.figures import (
    Benchmark,
    Effort,
    Figure,
    Skipped,
    at_least,
    at_most,
    figure,
    in_turns,
    median_of,
    per_second,
    ratios,
)
from bench.kernels import fill_draws
from bench.page import page
from bench.peers_c import POLICY_NUMBERS, compiler, run_c
from bench.peers_python import lists_of, run_heapq, run_simpy

from bench import results, startup, work
from trimtab.errors import UsageError

QUICK = Effort(is_quick=True)
CHEAP = {"python-policy", "stages", "choices", "decisions"}  # the others compile much, or start processes


def _counting(name: str) -> Benchmark:
    """A benchmark without work, with figures of two kinds: another one at each measurement."""
    measured: list[float] = []

    def measure(effort: Effort) -> Iterator[Figure]:
        measured.append(float(len(measured)))
        yield figure(measured, "s", at_most(2.0), way=name, nodes=4)
        yield figure(measured, "million requests/s", way=name, nodes=4)

    return Benchmark(name, f"title of {name}", f"about {name}", measure)


@pytest.fixture
def result() -> results.Result:
    return results.measured(_counting("python-policy"), QUICK)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in CHEAP else pytest.mark.full) for name in BENCHMARKS]
)
def test_every_benchmark_gives_finite_figures(name: str) -> None:
    items = list(BENCHMARKS[name].measure(QUICK))
    figures = [item for item in items if isinstance(item, Figure)]
    assert figures
    for f in figures:
        assert math.isfinite(f.median)
        assert f.least <= f.median <= f.most
        assert f.labels
        assert f.unit
    assert all(item.reason for item in items if isinstance(item, Skipped))
    labels = [tuple(f.labels.items()) for f in figures]
    assert len(labels) == len(set(labels))


def test_everything_on_has_every_feature_at_work() -> None:
    """A long enough run: a tiny one ends before the first node fails."""
    rows = [f for f in BENCHMARKS["everything-on"].measure(_Longer()) if f.unit == "per 1,000 requests"]
    happened = {f.labels["figure"] for f in rows if f.median > 0}
    assert happened == {name.replace("_", " ") for name in COUNTED}


class _Longer(Effort):
    def __init__(self) -> None:
        super().__init__(is_quick=True)

    def requests(self, full: int) -> int:
        return 20_000


def test_all_peers_make_the_same_decisions() -> None:
    built = work.slots(6, 2_000)
    given = lists_of(built)
    own = work.timed(built, "power-of-d").completion_mean_s
    for _, theirs in (run_heapq(given), run_simpy(given)):
        assert theirs == pytest.approx(own, rel=1e-12)


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the path")
@pytest.mark.parametrize("policy", POLICY_NUMBERS)
def test_the_c_loop_makes_the_same_decisions(policy: str) -> None:
    built = work.slots(6, 2_000)
    own = work.timed(built, policy).completion_mean_s
    assert run_c(built, policy)[1] == pytest.approx(own, rel=1e-12)


def test_work_that_differs_is_no_comparison() -> None:
    work.must_agree("same", 2.0, 2.0 + 1e-10)
    with pytest.raises(RuntimeError, match=r"no comparison"):
        work.must_agree("other", 2.0, 2.0 + 1e-8)
    with pytest.raises(RuntimeError, match=r"no comparison"):
        work.must_agree("nothing", 2.0, math.nan)
    built = work.slots(4, 200)
    with pytest.raises(RuntimeError, match=r"same results"):
        work.both_s(built, "round-robin", "random", 1)


def test_draws_of_the_peers_are_uniform() -> None:
    draws = np.zeros((20_000, 2))
    fill_draws(3, draws)
    counts, _ = np.histogram(draws, bins=10, range=(0.0, 1.0))
    assert ((counts - 4_000.0) ** 2 / 4_000.0).sum() < 27.9  # chi-squared, 9 degrees of freedom, p = .001
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.03


def test_head_takes_the_first_requests() -> None:
    built = work.slots(4, 50)
    first = work.head(built, 7)
    assert len(first.requests) == 7
    assert (first.requests.work["arrival_s"] == built.requests.work["arrival_s"][:7]).all()


def test_figures_by_hand() -> None:
    f = figure([3.0, 1.0, 2.0], "s", at_most(2.0), nodes=10_000)
    assert (f.median, f.least, f.most, f.repetitions, f.is_met) == (2.0, 1.0, 3.0, 3, True)
    assert f.labels == {"nodes": "10,000 nodes"}
    assert figure([2.0], "s", at_least(2.5)).is_met is False
    assert figure([2.0], "s").is_met is None
    assert (str(at_least(30)), str(at_most(1.5))) == ("≥ 30", "≤ 1.5")
    assert per_second(3_000_000, [1.0, 2.0]) == [3.0, 1.5]
    assert ratios([6.0, 8.0], [2.0, 4.0]) == [3.0, 2.0]


def test_the_interval_of_a_median_covers_it_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(3), 0
    for _ in range(2_000):
        found = median_of(rng.lognormal(size=60), "ms", at_most(1.0))
        covered += found.least <= 1.0 <= found.most
        assert found.least <= found.median <= found.most
    assert 0.94 <= covered / 2_000 <= 0.99  # 95 % or a little more: there are 60 places only
    few = median_of([3.0, 1.0, 2.0], "ms")
    assert (few.least, few.median, few.most, few.repetitions) == (1.0, 2.0, 3.0, 3)


def test_contestants_take_turns() -> None:
    log: list[str] = []

    def contestant(name: str) -> float:
        log.append(name)
        return float(len(log))

    assert in_turns(2, lambda: contestant("a"), lambda: contestant("b")) == [[1.0, 3.0], [2.0, 4.0]]
    assert log == ["a", "b", "a", "b"]


def test_results_survive_saving(tmp_path: Path, result: results.Result) -> None:
    file = tmp_path / "results.json"
    with_all = dataclasses.replace(result, skipped=(Skipped({"figure": "that"}, "because"),))
    results.save(file, {"python-policy": with_all})
    assert results.load(file) == {"python-policy": with_all}
    assert [f.name for f in tmp_path.iterdir()] == ["results.json"]


def test_the_page_shows_every_target_and_what_missed_it(result: results.Result) -> None:
    f = figure([1.0, 2.0, 3.0], "million requests/s", at_least(2.5), policy="mine", nodes=77)
    done = dataclasses.replace(result, figures=(f,))
    skipped = dataclasses.replace(result, skipped=(Skipped({"figure": "that"}, "because"),))
    text = page({"policies": done, "startup": skipped})
    assert "| policies | mine · 77 nodes | 2.00 | 1.00 – 3.00 | million requests/s | ≥ 2.5 | **no** |" in text
    assert "Missed in [policies](#policies-by-number-of-nodes)" in text
    assert "| policy | 77 nodes |" in text
    assert "| mine | 2.00 |" in text
    assert "Not measured: that (because)" in text
    assert "a quick run" in text


def test_the_command_measures_saves_and_merges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python-policy", "interpreted"):
        monkeypatch.setitem(BENCHMARKS, name, _counting(name))
    file = tmp_path / "results.json"
    assert main(["python-policy", "--quick", "--out", str(file)]) == 0
    assert "million requests/s" in capsys.readouterr().out
    first = results.load(file)["python-policy"]
    assert [f.median for f in first.figures] == [0.0, 0.0]
    assert main(["interpreted", "--quick", "--out", str(file)]) == 0
    assert list(results.load(file)) == ["python-policy", "interpreted"]
    assert results.load(file)["python-policy"] == first
    assert main(["python-policy", "--quick", "--out", str(file)]) == 0
    assert [f.median for f in results.load(file)["python-policy"].figures] == [0.5, 0.5]


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text("[1]", encoding="utf-8")
    assert main(["--docs", "--out", str(file)]) == 2
    assert "other.json: no results" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, result: results.Result) -> None:
    with pytest.raises(UsageError, match="can't be written"):
        results.save(tmp_path / "missing" / "results.json", {"python-policy": result})


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["nonsense"])
    assert stopped.value.code == 2
    assert "policies" in capsys.readouterr().err


def test_a_command_that_fails_is_skipped_with_its_reason(tmp_path: Path) -> None:
    shell = startup.Shell(tmp_path, tmp_path)
    command = startup.Command("broken", "raise SystemExit('no such thing')")
    labels = {"figure": "broken", "cache": "warm"}
    assert startup.warm(command, shell, 1) == Skipped(labels, "exit code 1: no such thing")
    assert isinstance(startup.warm(startup.NOTHING, shell, 1), Figure)
