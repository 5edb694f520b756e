"""Several requests for embeddings as one, and the parts of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import orjson

from trimtab.gateway.api.split_body import listed_answer
from trimtab.gateway.model import Kind


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
