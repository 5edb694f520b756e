"""The command line of benchmarks that save figures as JSON and write a page of docs from them."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bench.ages import aged
from bench.results import write_whole


def page_parser(module: str, about: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE` with the option `--docs`; `about`: the module's docstring."""
    heading = (about or "").partition("\n")[0]
    parser = argparse.ArgumentParser(f"python -m {module}", description=heading)
    parser.add_argument("--docs", action="store_true", help="only write the page from the saved figures")
    return parser


def saved_figures(results: Path) -> dict[str, Any]:
    """The figures of earlier runs."""
    return dict(json.loads(results.read_text(encoding="utf-8")))


def save_figures(results: Path, figures: dict[str, Any]) -> None:
    """Save figures, readable and with one value a line."""
    write_whole(results, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def write_page(page: Path, text: str) -> None:
    """Write the page with the age of its figures, and say which."""
    write_whole(page, aged(page, text))
    print(f"wrote {os.path.relpath(page)}")
