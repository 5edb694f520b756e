"""Outputs of stages as the journal keeps them: small values, and digests of those in the store."""

from __future__ import annotations

import pickle
from typing import Any, Final

from trimtab.chains.run_progress import Output
from trimtab.live.stage_backend import Ref

INLINE_BYTES: Final = 16_384  # larger values go to the store


def is_inline(ref: Ref) -> bool:
    """Whether the journal itself keeps a value."""
    return ref.data is not None and ref.size_bytes <= INLINE_BYTES


def packed(output: Output) -> bytes:
    """An output for the journal: small values, and digests of large ones."""

    def told(ref: Ref) -> tuple[Any, ...]:
        return ref.digest, ref.size_bytes, ref.data if is_inline(ref) else None

    return pickle.dumps(
        (told(output.whole), [[told(r) for r in items] for items in output.splits], output.tests)
    )


def unpacked(data: bytes) -> Output:
    """The other end of `packed`."""
    whole, splits, tests = pickle.loads(data)
    return Output(Ref(*whole), tuple(tuple(Ref(*ref) for ref in items) for items in splits), tests)


def digests_in(data: bytes) -> list[str]:
    """The values of a kept output that are in the store."""
    return [ref.digest for ref in unpacked(data).refs if ref.data is None]
