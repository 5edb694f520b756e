"""Libraries of the extra `private`, loaded when they are first used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from trimtab.errors import MissingExtra


def loaded(module: str, problem: str) -> Any:
    """A module of the extra; `problem`: what needs which library. Raises MissingExtra."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise MissingExtra(problem, expected="pip install 'trimtab[private]'") from missing


@cache
def opendp() -> Any:
    """OpenDP's functions. Raises MissingExtra."""
    dp = loaded("opendp.prelude", "privacy needs OpenDP")
    dp.enable_features("contrib")
    return dp
