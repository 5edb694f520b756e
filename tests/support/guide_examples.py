"""The examples in YAML and Python of the guides, each known by its page and its first line, or its second."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for at in ("guides", "concepts", "start") for page in (ROOT / "docs" / at).glob("*.md")),
]
OF_GATEWAYS = frozenset({"deploy", "record-and-replay", "serve", "shadow-and-switch"})
OF_RUNS = frozenset({"demo-chain", "kubeflow", "run-chains", "spark", "train-jobs"})
Check = Callable[[str, Path], Any]  # the example, and an empty folder that is the current one
Checks = Mapping[str, Check | str]  # example → its check, or the test that runs it elsewhere


@functools.cache
def found() -> dict[str, str]:
    """The examples in YAML and Python: page and first line → text."""
    examples = {}
    for page in PAGES:
        for text in re.findall(r"^ *```(?:yaml|python)\n(.*?)^ *```", page.read_text(), re.M | re.S):
            lines = [line.partition("  #")[0].strip()[:58] for line in text.splitlines()]
            name = f"{page.stem}: {lines[0]}"
            examples[f"{page.stem}: {lines[1]}" if name in examples else name] = textwrap.dedent(text)
    return examples


def of_pages(pages: frozenset[str]) -> set[str]:
    """The examples of these pages."""
    return {name for name in found() if name.partition(": ")[0] in pages}


def run_here(checks: Checks) -> pytest.MarkDecorator:
    """Parametrizes a test by the examples that are run here, each with its check."""
    here = [(name, check) for name, check in checks.items() if not isinstance(check, str)]
    return pytest.mark.parametrize(("name", "check"), here, ids=[name for name, _ in here])


def missing_tests(checks: Checks) -> set[str]:
    """Tests that are named for an example and are not there."""
    named = {check.split(":")[0] for check in checks.values() if isinstance(check, str)}
    return {path for path in named if not (ROOT / "tests" / path).exists()}


def ran(example: str, **names: Any) -> dict[str, Any]:
    """The names that an example defines, with these defined before."""
    names = {"__name__": "example", **names}
    exec(compile(example, "example", "exec"), names)
    return names
