"""Requests that can be served in parts or as one, and the joining or division of their answers.

In parts: arrays of embeddings (`input`), arrays of prompts of /v1/completions, and images (`n`). Never
streams. Images with a seed are not split: every part would draw the same ones. As one:
requests for embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
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


def texts_of(request: dict[str, Any]) -> list[Any]:
    """The texts of a request, as words or as tokens; none = it can't be batched."""
    given = request.get("input")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        return []
    if all(type(token) is int for token in given):
        return [given]  # one text, in tokens
    is_plain = all(isinstance(text, str) for text in given) or all(isinstance(text, list) for text in given)
    return given if is_plain else []


def batch_key(request: dict[str, Any], texts: Sequence[Any]) -> bytes:
    """The common part of requests of one batch: all but their texts, and the texts' form."""
    rest = {name: value for name, value in request.items() if name != "input"}
    return orjson.dumps([type(texts[0]).__name__, rest], option=orjson.OPT_SORT_KEYS)


def joined(request: dict[str, Any], texts: Sequence[Sequence[Any]]) -> bytes:
    """A request like this one for the texts of all."""
    return orjson.dumps(request | {"input": [text for of_one in texts for text in of_one]})


def divided(answer: bytes, texts: Sequence[Sequence[Any]]) -> list[bytes]:
    """The answer of each request, with its share of the usage by length. Raises ValueError."""
    whole = listed_answer(Kind.EMBEDDING, answer)
    entries, counts = whole["data"], [len(of_one) for of_one in texts]
    if len(entries) != sum(counts):
        raise ValueError("an answer with another number of embeddings")
    by_index: dict[int, dict[str, Any]] = {}
    for k, entry in enumerate(entries):
        index = entry.get("index", k) if isinstance(entry, dict) else None
        if type(index) is not int:
            raise ValueError("an embedding of another form")
        by_index[index] = entry
    lengths = [sum(len(text) for text in of_one) for of_one in texts]
    usages = _shares(whole["usage"], lengths) if isinstance(whole.get("usage"), dict) else None
    found, at = [], 0
    for i, count in enumerate(counts):
        if not all(k in by_index for k in range(at, at + count)):
            raise ValueError("an answer that lacks an embedding")
        own = [by_index[at + k] | {"index": k} for k in range(count)]
        usage = {} if usages is None else {"usage": usages[i]}
        found.append(orjson.dumps(whole | {"data": own} | usage))
        at += count
    return found


def _shares(usage: dict[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Usage in proportion to lengths; whole numbers that sum to the whole."""
    total = sum(lengths) or 1
    ends = [0, *accumulate(lengths)]
    shares: list[dict[str, Any]] = [{} for _ in lengths]
    for name, amount in usage.items():
        if isinstance(amount, dict):
            parts: list[Any] = list(_shares(amount, lengths))
        elif type(amount) is int:
            parts = [amount * end // total - amount * begin // total for begin, end in pairwise(ends)]
        else:
            parts = [amount] * len(lengths)
        for share, part in zip(shares, parts, strict=True):
            share[name] = part
    return shares
