"""What tenants are booked for: requests that were served, and no others."""

from __future__ import annotations

import pytest

from support.gateway.observe_builders import make_exchange
from trimtab.gateway.model import Outcome, Usage
from trimtab.gateway.observe.usage_observer import UsageObserver


class Book:
    """Keeps what is booked."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int, int, float]] = []

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        self.rows.append((tenant, model, prompt_tokens, completion_tokens, service_s))


@pytest.mark.parametrize(
    ("status", "outcome", "n_booked"),
    [
        (101, Outcome.DONE, 1),  # a WebSocket
        (200, Outcome.DONE, 1),
        (200, Outcome.CANCELLED, 1),  # the client left when the answer had begun
        (0, Outcome.CANCELLED, 0),  # and before
        (404, Outcome.DONE, 0),
        (429, Outcome.DONE, 0),
        (502, Outcome.FAILED, 0),
    ],
)
def test_served_requests_are_booked(status: int, outcome: Outcome, n_booked: int) -> None:
    book = Book()
    usage = Usage(prompt_tokens=30, completion_tokens=12)
    UsageObserver(book).ended([make_exchange(usage=usage, response_status=status, outcome=outcome)])
    assert book.rows == [("t", "llama", 30, 12, 2.0)] * n_booked


def test_what_was_served_in_parts_or_in_a_batch_is_booked() -> None:
    """It has no attempts of its own."""
    book, usage = Book(), Usage(prompt_tokens=30)
    UsageObserver(book).ended([make_exchange(usage=usage, attempts=[])])
    assert book.rows == [("t", "llama", 30, 0, 2.0)]


def test_what_no_node_got_and_what_nobody_pays_for_is_not_booked() -> None:
    book = Book()
    for exchange in (make_exchange(attempts=[]), make_exchange(tenant=None)):
        UsageObserver(book).ended([exchange])
    assert not book.rows
