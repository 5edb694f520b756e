"""The results of a run for its user: as inputs finish, with the values in them."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property
from typing import Any

from trimtab.chains.graph import Chain, Value
from trimtab.chains.run_state import Ending, Failure, PartOutput, State
from trimtab.errors import TrimtabError
from trimtab.live.value_codec import at_path, decode


class StageFailed(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """An input has no output, because a stage failed or its run was ended. `failure` says why."""

    def __init__(self, number: int, failure: Failure | None) -> None:
        super().__init__(f"input {number}: {failure}")
        self.number, self.failure = number, failure
        if failure is not None and failure.error.trace:
            self.add_note(f"in the worker:\n{failure.error.trace}")


class Result:
    """The end of one input."""

    def __init__(self, ending: Ending, chain: Chain) -> None:
        self.index, self.state, self.failure = ending.number, ending.state, ending.failure
        self.elapsed_s = ending.elapsed_s
        self._ending, self._chain = ending, chain

    @property
    def is_ok(self) -> bool:
        """Whether there is an output."""
        return self.state is State.DONE

    @cached_property
    def value(self) -> Any:
        """The output. Raises StageFailed if there is none."""
        if not self.is_ok:
            raise StageFailed(self.index, self.failure)
        found = {
            self._chain.steps[k].name: [None if data is None else decode(data) for data in values]
            for k, values in zip(self._chain.output_steps, self._ending.output, strict=True)
        }
        return _filled(self._chain.output, found)

    def __repr__(self) -> str:
        return f"<result {self.index}: {self.state.value}{'' if self.is_ok else f', {self.failure}'}>"


class Part:
    """The output of one instance of a stage that the run's output has values of."""

    def __init__(self, told: PartOutput, chain: Chain) -> None:
        self.input, self.stage, self.index = told.number, chain.steps[told.step].name, told.index
        self._data = told.data

    @cached_property
    def value(self) -> Any:
        """The output."""
        return decode(self._data)

    def __repr__(self) -> str:
        return f"<part {self.stage}[{self.index}] of input {self.input}>"


class Parts:
    """Parts of a run's output as they come, for one reader: `for` or `async for`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()

    def put(self, part: Part | None) -> None:
        """The next part; None = there are no more."""
        self._queue.put(part)

    def __iter__(self) -> Iterator[Part]:
        while (part := self._queue.get()) is not None:
            yield part
        self._queue.put(None)

    async def __aiter__(self) -> AsyncIterator[Part]:
        while (part := await asyncio.to_thread(self._queue.get)) is not None:
            yield part
        self._queue.put(None)


def _filled(output: Any, found: Mapping[str, list[Any]]) -> Any:
    """The chain's output with values in place of what was not known."""
    if isinstance(output, Value):
        values = [None if v is None else at_path(v, output.path) for v in found[output.source]]
        return values if output.is_map else values[0]
    if isinstance(output, Mapping):
        return {key: _filled(part, found) for key, part in output.items()}
    if isinstance(output, list | tuple):
        return type(output)(_filled(part, found) for part in output)
    return output
