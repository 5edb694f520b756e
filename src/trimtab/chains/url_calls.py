"""Calls of HTTP services by stages. Loaded in workers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

SHOWN_CHARACTERS = 300  # of an answer that says what went wrong


class NotAnswered(Exception):  # noqa: N818 - reads as the sentence it prints
    """A service refused a call, or answered what is not JSON."""


def post(url: str, asked: Mapping[str, Any], headers: Mapping[str, str], wait_s: float) -> Any:
    """The JSON of the answer. Raises NotAnswered, and what `requests` raises without an answer."""
    answer = requests.post(url, json=asked, headers=dict(headers), timeout=wait_s)
    if not answer.ok:
        raise NotAnswered(f"{url} answered {answer.status_code}: {answer.text[:SHOWN_CHARACTERS]}")
    try:
        return answer.json()
    except ValueError as error:
        raise NotAnswered(f"{url} answered no JSON: {answer.text[:SHOWN_CHARACTERS]}") from error
