"""A self-contained page that opens offline, without network requests.

Style, script and plotly.js are embedded, the larger parts compressed. The page's own security policy forbids
any request.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import TYPE_CHECKING

from trimtab.report.fragments import facts
from trimtab.report.packed_text import PackedText, packed

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
    figures, plotly = packed(json.dumps(drawn, separators=(",", ":"), ensure_ascii=False)), _plotly_js()
    return Template(_asset("page.html")).substitute(
        title=escape(page.title),
        lead=escape(page.lead),
        facts=facts(page.facts) if page.facts else "",
        body=page.body,
        footer="Made by trimtab. This file is complete in itself: keep it, send it, open it offline.",
        css=_asset("page.css"),
        js=_asset("page.js"),
        plotly=plotly.digits,
        plotly_bytes=plotly.n_bytes,
        figures=figures.digits,
        figures_bytes=figures.n_bytes,
    )


def _assets() -> Traversable:
    return resources.files("trimtab.report") / "assets"


def _asset(name: str) -> str:
    return (_assets() / name).read_text(encoding="utf-8")


@cache
def _plotly_js() -> PackedText:
    """plotly.js with figures on two axes only, a third of the whole (npm: plotly.js-cartesian-dist-min)."""
    script = (_assets() / "plotly-cartesian.min.js.gz").read_bytes()
    return packed(gzip.decompress(script).decode())
