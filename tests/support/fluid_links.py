"""Payloads on shared links, advanced from one change to the next by dividing bandwidth anew each time.

Written the slow way round, to check the loop's virtual-time bookkeeping: every transfer keeps what is left of
it, and all of them are moved on at every event.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Payload:
    """One transfer: it enters its first link at `ready_s`, and leaves for good at `gives_up_s`."""

    ready_s: float
    gib: float
    route: list[int]
    gives_up_s: float = float("inf")
    hop: int = -1  # index into route; -1 = not begun
    left_gib: float = 0.0
    there_s: float = float("nan")


def transfer(payloads: list[Payload], gib_per_s: list[float]) -> None:
    """Fill in `there_s` of every payload that does not give up."""
    now_s = 0.0
    while True:
        rate = _rates(payloads, gib_per_s)
        ends = [now_s + p.left_gib / rate[i] for i, p in enumerate(payloads) if _on_link(p)]
        waits = [p.ready_s for p in payloads if p.hop < 0]
        leaves = [p.gives_up_s for p in payloads if p.hop < len(p.route) and p.gives_up_s > now_s]
        next_s = min([*ends, *waits, *leaves], default=float("inf"))
        if next_s == float("inf"):
            return
        for i, p in enumerate(payloads):
            if _on_link(p):
                p.left_gib -= rate[i] * (next_s - now_s)
        now_s = next_s
        _step(payloads, now_s)


def _on_link(p: Payload) -> bool:
    return 0 <= p.hop < len(p.route)


def _rates(payloads: list[Payload], gib_per_s: list[float]) -> list[float]:
    here = [p.route[p.hop] if _on_link(p) else -1 for p in payloads]
    return [gib_per_s[link] / here.count(link) if link >= 0 else 0.0 for link in here]


def _step(payloads: list[Payload], now_s: float) -> None:
    for p in payloads:
        if p.hop < len(p.route) and p.gives_up_s <= now_s:
            p.hop = len(p.route)
        elif (p.hop < 0 and p.ready_s <= now_s) or (_on_link(p) and p.left_gib <= 1e-12):
            p.hop, p.left_gib = p.hop + 1, p.gib
            if p.hop == len(p.route):
                p.there_s = now_s
