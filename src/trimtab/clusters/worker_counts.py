"""How many workers a user asks for."""

from __future__ import annotations

import re
from typing import Final

from trimtab.live.stage_backend import StageNode

EXPECTED: Final = "a number, or LEAST..MOST such as 1..4"


def worker_counts(text: str) -> tuple[int, int]:
    """The least and the most workers; (0, 0) = one for each core. Raises ValueError with what is expected."""
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    least = int(found[1]) if found else 0
    most = int(found[2] or least) if found else 0
    if not found or most < least or (found[2] and least == 0):
        raise ValueError(EXPECTED)
    return least, most


def pool_of(text: str) -> dict[str, list[StageNode]]:
    """One node of so many workers, as an option of backends. For one for each core: no option."""
    least, most = worker_counts(text)
    return {"nodes": [StageNode("local", slots=most, slots_min=least)]} if most else {}
