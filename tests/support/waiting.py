"""Waiting for a condition: one helper for asynchronous tests, one for the others."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_S = 60.0  # so that a broken test ends
POLL_S = 0.005


async def until(
    condition: Callable[[], Awaitable[T] | T],
    what: str = "the condition holds",
    *,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
) -> T:
    """Ask again, by the clock of the event loop, until the answer is true; returns the answer.

    `what` is what was waited for, as the error names it.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                asked = condition()
                answer: T = await asked if inspect.isawaitable(asked) else asked
                if answer:
                    return answer
                await asyncio.sleep(poll_s)
    except TimeoutError as error:
        raise TimeoutError(f"not within {timeout_s:g} s: {what}") from error


def wait_until(
    ask: Callable[[], T], accept: Callable[[T], object] = bool, *, timeout_s: float = TIMEOUT_S
) -> T:
    """Ask again until the answer is accepted; returns the answer. Blocks the thread."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if accept(answer):
            return answer
        assert time.monotonic() < deadline_s, f"the last answer after {timeout_s:g} s is {answer!r}"
        time.sleep(POLL_S)
