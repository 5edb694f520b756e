"""Requests that can be served in parts, and the joining of the parts' answers.

Arrays of embeddings (`input`), arrays of prompts of /v1/completions, and images (`n`). Never streams. Images
with a seed are not split: every part would draw the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from trimtab.gateway.model import Kind

_ARRAY: Final = {Kind.EMBEDDING: "input", Kind.COMPLETION: "prompt"}
_LISTED: Final = {Kind.EMBEDDING: "data", Kind.COMPLETION: "choices", Kind.IMAGE: "data"}


def parsed(body: bytes) -> dict[str, Any]:
    """A request's object; empty = none."""
    try:
        request = orjson.loads(body)
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def items_of(kind: Kind, request: dict[str, Any]) -> int:
    """How many items the request has that may be served apart; 1 = it can't be split."""
    if request.get("stream"):
        return 1
    if kind is Kind.IMAGE:
        n = request.get("n")
        return n if type(n) is int and n > 1 and request.get("seed") is None else 1
    items = request.get(_ARRAY.get(kind, ""))
    if not isinstance(items, list) or not all(isinstance(item, str | list) for item in items):
        return 1  # an array of numbers is one text, in tokens
    return max(1, len(items))


def split(kind: Kind, request: dict[str, Any], sizes: Sequence[int]) -> list[bytes]:
    """The requests of the parts, with so many items each."""
    parts, at = [], 0
    for size in sizes:
        if kind is Kind.IMAGE:
            part = {"n": size}
        else:
            name = _ARRAY[kind]
            part = {name: request[name][at : at + size]}
        parts.append(orjson.dumps(request | part))
        at += size
    return parts


def join(kind: Kind, answers: Sequence[bytes]) -> bytes:
    """One answer from those of the parts, in their order. Raises ValueError for an answer of another form."""
    joined, listed, usage = listed_answer(kind, answers[0]), list[Any](), dict[str, Any]()
    for answer in answers:
        one = listed_answer(kind, answer)
        shift = len(listed)
        for entry in one[_LISTED[kind]]:
            if isinstance(entry, dict) and type(entry.get("index")) is int:
                entry["index"] += shift
            listed.append(entry)
        usage = _sum(usage, one.get("usage"))
    joined[_LISTED[kind]] = listed
    if usage:
        joined["usage"] = usage
    return orjson.dumps(joined)


def listed_answer(kind: Kind, body: bytes) -> dict[str, Any]:
    """An answer with a list of results. Raises ValueError for another form."""
    answer = orjson.loads(body)
    if not isinstance(answer, dict) or not isinstance(answer.get(_LISTED[kind]), list):
        raise ValueError("an answer of another form")
    return answer


def _sum(one: dict[str, Any], other: Any) -> dict[str, Any]:
    """Sums of the numbers in two reports of usage, nested ones too."""
    total = dict(one)
    for name, amount in other.items() if isinstance(other, dict) else ():
        if isinstance(amount, dict):
            before = total.get(name)
            total[name] = _sum(before if isinstance(before, dict) else {}, amount)
        elif type(amount) in (int, float):
            before = total.get(name)
            total[name] = amount + (before if type(before) in (int, float) else 0)
        else:
            total.setdefault(name, amount)
    return total
