"""OpenDP, loaded when it is first used."""

from __future__ import annotations

from functools import cache
from typing import Any

from trimtab.errors import MissingExtra


@cache
def opendp() -> Any:
    """OpenDP's functions. Raises MissingExtra."""
    try:
        import opendp.prelude as dp
    except ImportError as missing:
        expected = "pip install 'trimtab[private]'"
        raise MissingExtra("privacy needs OpenDP", expected=expected) from missing
    dp.enable_features("contrib")
    return dp
