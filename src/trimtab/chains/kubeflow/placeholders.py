"""Placeholders in texts of a pipeline: `{{$.inputs.parameters['name']}}` and the like.

They are resolved as the launcher of Kubeflow Pipelines does (backend/src/v2: `PBValueToText`): whole numbers
are written without a fraction, lists and tables as compact JSON. `kfp.local` writes 3 as 3.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

PLACEHOLDER: Final = re.compile(r"\{\{\$(\.[^{}]*)?\}\}")
INPUT: Final = re.compile(r"\.inputs\.parameters\[(?:'{1,2}|\")(.+?)(?:'{1,2}|\")\]")


def text_of(value: Any) -> str:
    """A parameter within a text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, separators=(",", ":"))


def with_inputs(value: Any, given: Mapping[str, Any]) -> Any:
    """A parameter whose texts name others, as f-strings of pipelines do."""
    if isinstance(value, str):
        return replaced(value, lambda path: _input_text(path, given))
    if isinstance(value, list):
        return [with_inputs(item, given) for item in value]
    if isinstance(value, dict):
        return {key: with_inputs(item, given) for key, item in value.items()}
    return value


def _input_text(path: str, given: Mapping[str, Any]) -> str | None:
    found = INPUT.fullmatch(path)
    return None if found is None else text_of(given.get(found[1]))


def replaced(text: str, resolve: Callable[[str], str | None]) -> str:
    """A text with its placeholders resolved; None leaves one as it is."""

    def one(match: re.Match[str]) -> str:
        found = resolve(match[1] or "")
        return match[0] if found is None else found

    return PLACEHOLDER.sub(one, text)


def unknown_in(value: Any) -> str:
    """The first placeholder in a parameter that is no input; "" = there is none."""
    if isinstance(value, str):
        found = [match for match in PLACEHOLDER.finditer(value) if not INPUT.fullmatch(match[1] or "")]
        return found[0][0] if found else ""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(unknown_in, items)), "")
