"""Results of deterministic stages that are kept for equal inputs.

The store evicts by worth per byte, GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms",
USITS 1997), as `engine/stage_results.py` does: credit = inflation + service seconds / GiB, set again at use.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import types
from collections.abc import Sequence
from typing import Any, Final

from trimtab.chains.graph import Chain, StageCall
from trimtab.chains.run_progress import digests_in
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import KeptOutput
from trimtab.jobs.value_store import ValueStore
from trimtab.live.stage_backend import Argument, Ref
from trimtab.live.value_codec import pickled

GIB = float(1 << 30)
LEAST_BYTES: Final = 256  # size that an output counts as at least
MOST_ROWS: Final = 200_000  # that one host knows
_EVICT_EVERY = 256  # new results


class Memo:
    """Kept outputs by key. What other hosts add is seen at the next start."""

    def __init__(self, journal: RunJournal, store: ValueStore, most_bytes: int) -> None:
        self._journal, self._store, self._most_bytes = journal, store, most_bytes
        self._known: dict[str, KeptOutput] = {}
        self._prints: dict[str, bytes] = {}
        self._inflation, self._n_new = 0.0, 0
        self._eviction: asyncio.Task[None] | None = None

    async def open(self, chains: Sequence[Chain]) -> None:
        """Read what is kept, if some stage may use it."""
        steps = [step for chain in chains for step in chain.steps if step.stage.stage_options.deterministic]
        self._prints = {step.code_name: fingerprint(step) for step in steps}
        if steps:
            self._known = await self._journal.remembered(MOST_ROWS)

    async def close(self) -> None:
        """Finish an eviction."""
        if self._eviction is not None:
            await self._eviction

    def key(self, step: StageCall, arguments: Sequence[Argument]) -> str:
        """The key of a call; "" = its stage is not deterministic."""
        printed = self._prints.get(step.code_name)
        return "" if printed is None else key_of(printed, arguments)

    def find(self, key: str) -> bytes | None:
        """The output that is kept under a key. Its credit is set again."""
        if (kept := self._known.get(key)) is None:
            return None
        self._journal.remember(key, *kept, self._credit(kept))
        return kept.output

    def _credit(self, kept: KeptOutput) -> float:
        return self._inflation + kept.service_s / (kept.bytes / GIB)

    def keep(self, key: str, output: bytes, size_bytes: int, service_s: float) -> None:
        """Keep an output."""
        kept = self._known[key] = KeptOutput(output, max(LEAST_BYTES, size_bytes), service_s)
        self._journal.remember(key, *kept, self._credit(kept))
        self._n_new += 1
        if self._n_new >= _EVICT_EVERY and self._eviction is None:
            self._n_new = 0
            self._eviction = asyncio.get_running_loop().create_task(self._evict())

    async def _evict(self) -> None:
        try:
            dropped, inflation = await self._journal.evict(self._most_bytes)
            self._inflation = max(self._inflation, inflation)
            gone = set(dropped)
            self._known = {key: kept for key, kept in self._known.items() if kept.output not in gone}
            for output in gone:
                for digest in digests_in(output):
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(self._store.drop, digest)
        finally:
            self._eviction = None


def key_of(printed: bytes, arguments: Sequence[Argument]) -> str:
    """The key of a call: its stage, and the digests of its arguments."""
    key = hashlib.blake2b(printed, digest_size=20)
    for argument in sorted(arguments, key=lambda a: a.name):
        told = (argument.name, argument.is_list, argument.path, [_digest(ref) for ref in argument.refs])
        key.update(repr(told).encode())
    return key.hexdigest()


def _digest(ref: Ref | None) -> str:
    return "" if ref is None else ref.digest


def fingerprint(step: StageCall) -> bytes:
    """The identity of a stage's results besides its inputs: its code and its declared version.

    Changes in functions that it calls are not seen: declare another `version` then.
    """
    code, options = step.stage.stage_code, step.stage.stage_options
    told = (
        options.version,
        step.splits,
        step.tests,
        *([sorted(options.optimise.items())] if options.optimise else []),
    )
    printed = hashlib.blake2b(repr(told).encode(), digest_size=20)
    try:
        printed.update(inspect.getsource(code).encode())
    except (OSError, TypeError):
        _add_code(printed, getattr(code, "__code__", None))
    for cell in getattr(code, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            printed.update(repr(cell.cell_contents).encode())
    printed.update(repr(getattr(code, "__defaults__", None)).encode())
    if not inspect.isroutine(code) and not inspect.isclass(code):  # an object that is called: what it holds
        printed.update(pickled(code))
    return printed.digest()


def _add_code(printed: Any, code: types.CodeType | None) -> None:
    if code is None:
        return
    printed.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(printed, constant)
        else:
            printed.update(repr(constant).encode())
