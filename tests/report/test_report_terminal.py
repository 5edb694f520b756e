from __future__ import annotations

import numpy as np
import pytest

from trimtab.report.terminal_plots import plot_rate, plot_sizes

START_S = np.linspace(0.0, 3600.0, 300)
RATE = np.where(START_S < 1800.0, 8.0, 2.0)
FULL = "█"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_plots_keep_to_their_width(width: int) -> None:
    plots = (
        plot_rate(START_S, RATE, width=width, colour=False),
        plot_sizes(np.geomspace(1.0, 1000.0, 500), width=width, colour=False),
    )
    assert all(len(line) <= width for plot in plots for line in plot.splitlines())


def test_a_rate_that_falls_is_seen_to_fall() -> None:
    rows = plot_rate(START_S, RATE, width=80, colour=False).splitlines()
    top = next(row for row in rows if FULL in row)
    assert top.count(FULL) == pytest.approx(35, abs=4)  # half of the canvas, the left one
    assert top.rindex(FULL) < 46
    assert "time (min)" in rows[-1]


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" in plot_rate(START_S, RATE, width=60, colour=True)
    assert "\x1b" not in plot_rate(START_S, RATE, width=60, colour=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in plot_rate(START_S, RATE, width=60)


def test_sizes_of_zero_are_left_out() -> None:
    assert plot_sizes(np.zeros(5), width=60, colour=False) == "no sizes above zero"
    assert FULL in plot_sizes(np.array([0.0, 1.0, 10.0]), width=60, colour=False)


def test_equal_sizes_are_one_bar() -> None:
    assert FULL in plot_sizes(np.full(10, 3.0), width=60, colour=False)
