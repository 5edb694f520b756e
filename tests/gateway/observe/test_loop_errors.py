"""Errors that reach the event loop: in the gateway's log, and few lines however often they come."""

from __future__ import annotations

import asyncio
import io
import json

from trimtab.gateway.observe.logs import LoopErrors, set_up_logs


def test_a_repeated_error_is_one_traceback_and_ever_rarer_lines_in_the_form_of_the_log() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        for number in range(100):
            try:
                raise KeyError(number)
            except KeyError as error:
                loop.call_exception_handler({"message": "a step failed", "exception": error})
        loop.call_exception_handler({"message": "no exception"})

    text = io.StringIO()
    handler = set_up_logs("json", stream=text)
    try:
        asyncio.run(main())
    finally:
        handler.close()
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        *(f"a step failed: KeyError: {n - 1} ({n} so far)" for n in (1, 2, 4, 8, 16, 32, 64)),
        "no exception (1 so far)",
    ]
    assert ["Traceback" in line.get("error", "") for line in lines] == [True] + [False] * 7
