"""docs/forecast.md says what was measured."""

from __future__ import annotations

import json

from bench.forecast import PAGE, RESULTS
from bench.forecast_page import page


def test_page_is_made_from_what_is_saved() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULTS.read_text(encoding="utf-8")))
