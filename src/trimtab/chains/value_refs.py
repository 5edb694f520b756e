"""Counts who needs values, so that a backend can free them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trimtab.live.stage_backend import Ref, StageBackend, digest_of


class ValueRefs:
    """The values that runs hold, by place. Values that no run holds are released."""

    def __init__(self, backend: StageBackend) -> None:
        self._backend = backend
        self._held: Counter[str] = Counter()
        self.held_bytes = 0

    def put_now(self, data: bytes) -> Ref:
        """A reference to a value of the host, which travels with it."""
        return Ref(digest_of(data), len(data), data)

    def hold(self, refs: Iterable[Ref]) -> None:
        """Count one more use of these values."""
        for ref in refs:
            if ref.place:
                self._held[ref.place] += 1
                if self._held[ref.place] == 1:
                    self.held_bytes += ref.size_bytes

    def let_go(self, refs: Iterable[Ref]) -> None:
        """Count one use less of these values."""
        free = []
        for ref in refs:
            if ref.place:
                self._held[ref.place] -= 1
                if self._held[ref.place] <= 0:
                    del self._held[ref.place]
                    self.held_bytes -= ref.size_bytes
                    free.append(ref)
        if free:
            self._backend.release(free)

    def drop(self, refs: Iterable[Ref]) -> None:
        """Release values that no run asked for."""
        if free := [ref for ref in refs if ref.place]:
            self._backend.release(free)
