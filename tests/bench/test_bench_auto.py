"""The page says what was measured."""

from __future__ import annotations

import json

from bench.ages import without_age
from bench.auto import CLUSTERS, PAGE, POLICIES, RESULTS
from bench.auto_page import page


def test_page_is_made_from_what_is_saved() -> None:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert len(saved["clusters"]) == CLUSTERS
    assert all(found.keys() == {*POLICIES} for found in saved["clusters"].values())
    assert without_age(PAGE) == page(saved)
