"""A self-contained page that opens offline, without network requests.

Style, script and plotly.js are embedded, and the page's own security policy forbids any request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from trimtab.report.fragments import facts

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class Page:
    """Values of the template."""

    title: str
    lead: str
    facts: dict[str, str]
    body: str
    figures: Mapping[str, Figure]


def origin(scenario_hash: str, versions: Mapping[str, str], made_at: datetime) -> dict[str, str]:
    """Origin of a page's figures: version, scenario and the like."""
    return {
        "Scenario hash": scenario_hash[:12],
        "Versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "Made": f"{made_at:%Y-%m-%d %H:%M} UTC",
    }


def html_of(page: Page) -> str:
    """The whole page as HTML text."""
    drawn = {name: json.loads(figure.to_json()) for name, figure in page.figures.items()}
    text = json.dumps(drawn, separators=(",", ":"), ensure_ascii=False)
    return Template(_asset("page.html")).substitute(
        title=escape(page.title),
        lead=escape(page.lead),
        facts=facts(page.facts) if page.facts else "",
        body=page.body,
        footer="Made by trimtab. This file is complete in itself: keep it, send it, open it offline.",
        css=_asset("page.css"),
        js=_asset("page.js"),
        plotly=_plotly_js(),
        figures=text.replace("<", "\\u003c"),  # no text of a figure can end the script element
    )


def _asset(name: str) -> str:
    return (resources.files("trimtab.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
