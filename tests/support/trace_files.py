"""Small trace files for the tests of this folder, and the recorded ones beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[2] / "../shared/data"


def recorded(name: str) -> Path:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the recorded trace {name} is not beside the checkout")
    return path


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path
