"""The prefix index against a plain model of what it should know; and the chains of hashes."""

import pickle
import random

from hypothesis import given
from hypothesis import strategies as st

from trimtab.gateway.api.prefix import PrefixIndex, chain
from trimtab.gateway.api.units import BLOCK_CHARS, BLOCK_TOKENS, HASHED_CHARS


def test_equal_beginnings_have_equal_chains() -> None:
    a = chain("m", "x" * 3 * BLOCK_CHARS + "a" * BLOCK_CHARS)
    b = chain("m", "x" * 3 * BLOCK_CHARS + "b" * BLOCK_CHARS + "c" * 100)
    assert a[:3] == b[:3]
    assert a[3] != b[3]
    assert len(set(a)) == len(a) == 4
    assert chain("other", "x" * BLOCK_CHARS) != a[:1]
    assert chain("m", "x" * (BLOCK_CHARS - 1)) == ()
    assert len(chain("m", "x" * 10 * HASHED_CHARS)) == HASHED_CHARS // BLOCK_CHARS
    assert all(-(2**63) <= link < 2**63 for link in a)


TREES = [chain("m", text * BLOCK_CHARS * 6) for text in "ab"]
PROMPTS = [tree[:length] for tree in TREES for length in range(1, 7)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "forget"]), st.integers(0, 5), st.sampled_from(PROMPTS)), max_size=40
)


@given(STEPS, st.sampled_from(PROMPTS))
def test_matches_are_what_nodes_were_sent(
    steps: list[tuple[str, int, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    index = PrefixIndex()
    held: dict[int, set[int]] = {}
    for what, node_idx, blocks in steps:
        if what == "add":
            index.add(node_idx, blocks)
            held.setdefault(node_idx, set()).update(blocks)
        else:
            index.forget(node_idx)
            held.pop(node_idx, None)
    expected = {}
    for node_idx, blocks_held in held.items():
        length = next((i for i, block in enumerate(asked) if block not in blocks_held), len(asked))
        if length and node_idx < 5:
            expected[node_idx] = length
    found = index.match(asked, 5)
    assert dict(found) == expected
    assert [length for _, length in found] == sorted(expected.values(), reverse=True)


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    index = PrefixIndex(max_blocks=1_000)
    hot = chain("m", "h" * BLOCK_CHARS * 16)
    draw = random.Random(1)
    for _ in range(5_000):
        index.add(1, [draw.getrandbits(60) for _ in range(10)])
        index.add(2, hot)
        assert len(index) <= 1_000
        assert index.match(hot, 3) == [(2, 16)]
    index.add(0, range(5_000))
    assert len(index) <= 1_000


def test_forgotten_nodes_leave_no_bits() -> None:
    index = PrefixIndex()
    blocks = chain("m", "x" * BLOCK_CHARS * 4)
    for turn in range(5_000):
        index.add(turn % 7, blocks)
        if turn % 7 != 3:
            index.forget(turn % 7)
    assert index.match(blocks, 10) == [(3, 4)]
    fresh = PrefixIndex()
    fresh.add(3, blocks)
    assert len(pickle.dumps(index)) < len(pickle.dumps(fresh)) + 500  # not a bit a turn


def test_a_list_of_matches_is_bounded() -> None:
    index = PrefixIndex()
    blocks = chain("m", "x" * BLOCK_CHARS * 4)
    for node_idx in range(1_000):
        index.add(node_idx, blocks if node_idx == 700 else blocks[:2])
    found = index.match(blocks, 1_000)
    assert found[0] == (700, 4)
    assert len(found) == 32


def test_reports_correct_what_is_believed() -> None:
    index = PrefixIndex()
    blocks = chain("m", "x" * BLOCK_CHARS * 10)
    index.add(0, blocks)
    index.correct(0, blocks, 10 * int(BLOCK_TOKENS), 10)
    assert index.match(blocks, 1) == [(0, 10)]
    for _ in range(60):  # it caches nothing
        index.correct(0, blocks, 0, 10)
    assert index.match(blocks, 1) == []
    for _ in range(60):  # now it does
        index.correct(0, blocks, 10 * int(BLOCK_TOKENS), 0)
    assert index.match(blocks, 1) == [(0, 10)]
    index.correct(0, blocks, 0, 0)  # nothing was expected: nothing learned
    assert index.match(blocks, 1) == [(0, 10)]
