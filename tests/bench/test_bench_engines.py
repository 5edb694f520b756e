"""Every engine gets the same work: plain Python and a pool end alike; pages and lines of user code."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.ages import without_age
from bench.engines.__main__ import CONCEPTS, PAGE, RESULTS
from bench.engines.claims import CLAIMS, FEATURES, SHOWN_BY
from bench.engines.opinions_page import BEGIN, END, with_opinions
from bench.engines.page import PROGRAM, good, page
from bench.engines.programs import plain_pool, trimtab_chain
from bench.engines.shown import SHOWN
from bench.engines.user_lines import lines_needed
from bench.engines.workload import (
    COPY_EVERY,
    FOLDER,
    begun,
    chains,
    draw_images,
    ideal_s,
    plain,
    plan_death,
    slowness,
)
from bench.page_command import saved_figures

from trimtab.clusters.in_process import InProcess
from trimtab.live.stage_backend import StageNode

SHORT = [[0.1 * seconds for seconds in row] for row in chains(6)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return draw_images(tmp_path / "images", 40)


def test_pages_are_made_of_the_figures() -> None:
    figures = saved_figures(RESULTS)
    assert page(figures) == without_age(PAGE)
    text = CONCEPTS.read_text(encoding="utf-8")
    assert with_opinions(text, figures) == text


def test_saved_outputs_were_those_of_plain_python() -> None:
    figures = saved_figures(RESULTS)
    assert all(run["is_right"] for name in PROGRAM for run in good(figures, name))


def test_near_duplicates_are_the_darker_copies(files: list[str]) -> None:
    assert plain(files, [])["images"] == [(k, k + COPY_EVERY - 1) for k in range(0, 40, COPY_EVERY)]


def test_a_pool_and_a_chain_give_what_plain_python_gives(files: list[str], tmp_path: Path) -> None:
    expected = plain(files, SHORT)
    with plain_pool.connected(slowness) as pool:
        assert plain_pool.images(pool, files) == expected["images"]
        assert plain_pool.paced(pool, SHORT) == expected["paced"]
        assert plain_pool.nothing(pool, 3) == 3
    with trimtab_chain.connected(InProcess([StageNode("one", slots=2)])) as session:
        assert trimtab_chain.images(session, files) == expected["images"]
        assert trimtab_chain.paced(session, SHORT) == expected["paced"]
        assert trimtab_chain.nothing(session, 3) == 3


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_a_planned_death_breaks_the_pool_at_that_stage(noted: Path) -> None:
    plan_death(noted, 2, 1)
    with plain_pool.connected(slowness) as pool, pytest.raises(Exception, match="terminated abruptly"):
        plain_pool.paced(pool, SHORT)
    stages = [(chain, stage) for chain, stage, _ in begun(noted)]
    assert (2, 1) in stages
    assert (2, 2) not in stages
    assert begun(noted) == []  # forgotten


def test_the_ideal_is_all_work_or_the_longest_chain() -> None:
    assert ideal_s([[3.0, 0.0], [3.0, 3.0]]) == pytest.approx(6.0)  # 9 s at speed 1.5, and 6 s at speed 1
    assert ideal_s([[1.0], [9.0]]) == 9.0


def test_every_claim_has_a_program_or_a_sentence() -> None:
    assert all(set(claims) == set(FEATURES) for claims in CLAIMS.values())
    for engine, claims in CLAIMS.items():
        for feature, claim in claims.items():
            shown = feature in SHOWN.get(SHOWN_BY[engine], {})
            assert bool(claim.url) + shown == (claim.verdict != "no" or bool(claim.url)), (engine, feature)


def test_lines_of_user_code_by_hand() -> None:
    source = '''"""Docstring."""

import json  # counted: `piece` uses it
import math


def piece(on):
    """Docstring."""
    # a comment

    return json.dumps(
        helper(on),
    )


def helper(on):
    return on


def other():
    return tool()


def tool():
    return math.pi


def connected(): return other, tool, piece
'''
    assert lines_needed(source, "piece", "connected", ["other"]) == 1 + 4 + 2 + 1
    assert lines_needed(source, "piece", "connected", []) == 1 + 4 + 2 + 1 + 2 + 2 + 1


def test_tables_take_the_place_of_older_ones() -> None:
    figures = saved_figures(RESULTS)
    text = with_opinions(f"before\n{BEGIN}\nold\n{END}\nafter", figures)
    assert text.startswith(f"before\n{BEGIN}\n\n### Suitable for")
    assert text.endswith(f"{END}\nafter")
    assert "old\n" not in text
