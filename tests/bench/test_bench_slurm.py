"""The page says what was measured; the figures of an end by hand."""

from __future__ import annotations

from bench.ages import without_age
from bench.page_command import saved_figures
from bench.slurm import PAGE, RESULTS, Job, drawn, figures_of
from bench.slurm_page import page


def test_the_page_is_made_of_the_figures() -> None:
    assert page(saved_figures(RESULTS)) == without_age(PAGE)


def test_waits_and_makespan_by_hand() -> None:
    """Submitted at 0, 1 and 2, begun at 0, 3 and 8, ended at 5, 8 and 12; the last needs two nodes."""
    jobs = [Job(0.0, 1, 2, 5), Job(1.0, 1, 4, 5), Job(2.0, 2, 4, 4)]
    ended = [
        {"submit_time": 100 + at, "start_time": 100 + begun, "end_time": 100 + end}
        for at, begun, end in ((0, 0, 5), (1, 3, 8), (2, 8, 12))
    ]
    assert figures_of(ended, jobs) == {
        "wait_mean_s": 8 / 3,
        "wait_wide_mean_s": 6.0,
        "wait_max_s": 6.0,
        "makespan_s": 12.0,
    }


def test_a_seed_gives_the_same_jobs_again() -> None:
    assert drawn(3) == drawn(3) != drawn(4)
