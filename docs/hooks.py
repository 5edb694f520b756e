"""Adds to the site's navigation the folders that hold one page for each entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SECTIONS = {"Policies": "policies", "Decisions": "decisions"}


def on_config(config: Any) -> None:
    """Append the pages of each such folder to its section, by name."""
    for entry in config.nav:
        for title, folder in SECTIONS.items():
            if title in entry:
                pages = sorted((FOLDER / folder).glob("*.md"))
                paths = [page for page in pages if page.name != "index.md"]
                entry[title] += [{_title(path): f"{folder}/{path.name}"} for path in paths]


def _title(path: Path) -> str:
    """The first heading of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))
