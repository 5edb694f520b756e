"""A small set of what `python -m bench.gateway.fuzz` tries, and that it notices what is wrong."""

from __future__ import annotations

import pytest
from bench.gateway import fuzz


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_break_nothing(seed: int) -> None:
    assert fuzz.fuzz(1_000, seed) > 0


def test_it_notices_a_reader_that_keeps_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzz.read

    def leaking(data: list[bytes]) -> tuple[list[fuzz.Seen], bool]:
        whole, refused = right(data)
        return [(*whole[0][:3], whole[0][3]), *((*seen[:3], fuzz.FIRST) for seen in whole[1:])], refused

    monkeypatch.setattr(fuzz, "read", leaking)
    with pytest.raises(fuzz.Wrong, match="bytes of the request before"):
        fuzz.fuzz(200, 0)
