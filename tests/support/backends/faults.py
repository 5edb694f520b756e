"""Faults of a fake backend, switched on and off while it runs: rules, and which one strikes a request."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

FaultKind = Literal[
    "status",  # answers `status`, with Retry-After where `retry_after_s` is set
    "delay",  # waits `seconds` before anything is read or said
    "slow_prefill",  # work before the first output byte takes `seconds` more
    "early_head",  # sends the response's head at once and the body when it is due, `seconds` later
    "stall",  # says nothing for `seconds` after `chunks` chunks
    "close",  # closes the connection after `chunks` chunks, or after `bytes` of a plain body
    "truncate",  # promises the whole body, sends half of it and closes
    "wrong_length",  # declares `bytes` more than it sends (less where negative), and goes on
    "garbage",  # bytes that are no HTTP, in place of a response, or of chunk number `chunks` of a stream
]


@dataclass(slots=True)
class Fault:
    """One rule. It strikes a request whose path begins with `path`, by chance, at most `times` times."""

    fault: FaultKind
    probability: float = 1.0
    path: str = "/v1/"
    times: int = 0  # 0 = as often as it likes
    status: int = 503
    retry_after_s: float = 0.0
    seconds: float = 0.0
    chunks: int = 0
    bytes: int = 0
    reset: bool = False  # close with a reset
    struck: int = 0  # how often it did


def faults_from(rules: object) -> list[Fault]:
    """Rules from JSON values. Raises ValueError, which says what is wrong."""
    if not isinstance(rules, list):
        raise ValueError("expected a list of rules")
    return [_fault(rule) for rule in rules]


def faults_from_text(text: str) -> list[Fault]:
    """Rules from JSON; none from an empty text. Raises ValueError."""
    return faults_from(json.loads(text)) if text else []


def _fault(rule: object) -> Fault:
    if not isinstance(rule, dict) or rule.get("fault") not in get_args(FaultKind):
        raise ValueError(f"expected an object whose `fault` is one of {', '.join(get_args(FaultKind))}")
    unknown = set(rule) - {field.name for field in fields(Fault)}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return Fault(**rule)


class Faults:
    """The rules in force."""

    def __init__(self, rules: Iterable[Fault] = (), seed: int = 0) -> None:
        self.rules = list(rules)
        self._random = random.Random(seed)

    def striking(self, path: str) -> dict[str, Fault]:
        """The rules that strike this request, by kind; the first of a kind counts."""
        struck: dict[str, Fault] = {}
        for rule in self.rules:
            if rule.fault not in struck and self._strikes(rule, path):
                struck[rule.fault] = rule
                rule.struck += 1
        return struck

    def _strikes(self, rule: Fault, path: str) -> bool:
        is_open = path.startswith(rule.path) and (not rule.times or rule.struck < rule.times)
        return is_open and self._random.random() < rule.probability

    def shown(self) -> list[dict[str, Any]]:
        """The rules as JSON values."""
        return [asdict(rule) for rule in self.rules]
