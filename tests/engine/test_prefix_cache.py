"""Prompt blocks on nodes: what a hit saves, what is dropped first, what policies see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import cluster, faults, requests
from support.by_hand import asked, count, fault_table, finishes, once, played
from support.mini_policies import Emptiest, Scripted
from support.plain_caches import PlainLru
from support.same_state import differences
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Prefixes, Requests
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run

BLOCK_TOKENS = 100.0
TOKEN_UNITS = 0.01  # a whole block saves a unit, which is a second on node 0


class Seeing(Scripted):
    """Goes where its key says, and is shown prefixes."""

    needs = frozenset({Need.PREFIX})


def nodes(n: int = 1, slots: int = 1) -> Cluster:
    return replace(cluster(n, slots=slots), prompt_token_units=np.array([TOKEN_UNITS]))


def with_prompts(r: Requests, chains: list[list[int]], tokens: list[float] | None = None) -> Requests:
    """These prompts, as chains of blocks; by default all blocks are full."""
    first = np.cumsum([0, *map(len, chains)])
    whole = [BLOCK_TOKENS * len(chain) for chain in chains]
    blocks = np.array([b for chain in chains for b in chain], np.int32)
    return replace(r, prefixes=Prefixes(blocks, first, np.array(tokens or whole), BLOCK_TOKENS))


def test_a_hit_takes_the_work_of_its_tokens_off() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10, 20, 30], 5.0), [[0, 1], [0, 1, 2], [3], [0, 4]])
    d = played(c, r, Options(prefix_blocks=10))
    assert finishes(d) == pytest.approx([5.0, 10 + 3.0, 25.0, 30 + 4.0])
    assert (count(d, "prompt_tokens"), count(d, "cached_tokens")) == (800, 300)


def test_the_last_block_of_a_prompt_may_have_fewer_tokens() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10], 5.0), [[0, 1], [0, 1]], [150.0, 150.0])
    assert finishes(played(c, r, Options(prefix_blocks=10))) == pytest.approx([5.0, 10 + 3.5])


def test_a_saving_is_never_more_than_the_work() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10], 0.5), [[0, 1], [0, 1]])
    assert finishes(played(c, r, Options(prefix_blocks=10))) == pytest.approx([0.5, 10.0])


def test_the_ends_of_prompts_go_before_their_beginnings() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10, 20, 30], 5.0), [[0, 1, 2], [3], [0, 1], [2]])
    d = played(c, r, Options(prefix_blocks=3))
    assert finishes(d)[2] == pytest.approx(20 + 3.0)  # 3 took the place of 2, not of 0
    assert d.state.prefix_place[:, 0].astype(bool).tolist() == [True, True, True, False]


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10], 5.0), [[0, 1, 2, 3], [0, 1, 2, 3]])
    assert finishes(played(c, r, Options(prefix_blocks=2)))[1] == pytest.approx(10 + 3.0)


def test_each_node_has_a_cache_of_its_own() -> None:
    c = nodes(2)
    r = with_prompts(asked(c, [0, 10, 20], 5.0, key=[0, 1, 1]), [[0], [0], [0]])
    assert finishes(played(c, r, Options(prefix_blocks=4))) == pytest.approx([5.0, 15.0, 24.0])


def test_a_failed_node_has_lost_its_prompts() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10, 20], 5.0), [[0], [0], [0]])
    options = Options(prefix_blocks=4, faults=fault_table(once(0, 16.0, 17.0)))
    assert finishes(played(c, r, options)) == pytest.approx([5.0, 14.0, 25.0])


def test_a_view_shows_what_each_node_has_of_the_prompt() -> None:
    c = nodes(3)
    r = asked(c, [0, 1, 10], 5.0, key=[0, 1, 2])
    r = with_prompts(r, [[0, 1], [0], [0, 1, 2]])
    driver = Driver(c, r, Options(prefix_blocks=4), Decider.of(Seeing()), mode="interpreted")
    driver.advance(10.0)
    assert driver.view().prefix_tokens.tolist() == [200.0, 100.0, 0.0]


def test_estimates_know_what_is_there_when_work_is_sent() -> None:
    c = nodes()
    r = with_prompts(asked(c, [0, 10], 5.0), [[0, 1], [0, 1]])
    driver = Driver(c, r, Options(prefix_blocks=4), Decider.of(Seeing()), mode="interpreted")
    driver.advance(0.0)
    assert driver.view().nodes.outstanding_s.tolist() == [5.0]
    driver.advance(10.0)
    assert driver.view().nodes.outstanding_s.tolist() == pytest.approx([3.0])


chains = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=25)


def _numbered(walks: list[list[int]]) -> list[list[int]]:
    """Left and right turns in a tree as chains of block numbers: equal numbers are equal beginnings."""
    number: dict[tuple[int, ...], int] = {}
    return [[number.setdefault(tuple(w[: k + 1]), len(number)) for k in range(len(w))] for w in walks]


@given(chains, st.integers(1, 8))
def test_one_node_serves_as_a_plain_cache_says(walks: list[list[int]], capacity: int) -> None:
    c, prompts = nodes(), _numbered(walks)
    r = with_prompts(asked(c, np.arange(len(walks)) * 2.0, 6.0), prompts)
    lru, end_s, expected = PlainLru(capacity), 0.0, []
    for i, prompt in enumerate(prompts):
        held = [block in lru for block in prompt]
        hit = held.index(False) if False in held else len(held)
        for block in reversed(prompt):
            lru.use(block)
        end_s = max(2.0 * i, end_s) + 6.0 - hit
        expected.append(end_s)
    assert finishes(played(c, r, Options(prefix_blocks=capacity))) == pytest.approx(expected)


def _busy(n: int = 300) -> tuple[Cluster, Requests, Options]:
    c = nodes(4, slots=2)
    pick = np.random.default_rng(3)
    walks = [pick.integers(0, 2, pick.integers(1, 6)).tolist() for _ in range(n)]
    r = with_prompts(requests(c, n, load=0.9, noise=True), _numbered(walks))
    return c, r, Options(prefix_blocks=9, faults=faults([0, 1], [2], mtbf_s=10.0, mttr_s=2.0))


def test_compiled_and_interpreted_agree() -> None:
    c, r, options = _busy()
    compiled = run(c, r, options, Decider.of(Emptiest()), mode="compiled").state
    plain = run(c, r, options, Decider.of(Emptiest()), mode="interpreted").state
    assert compiled.counts["cached_tokens"][0] > 0
    assert differences(compiled, plain) == []


def test_without_room_or_without_blocks_nothing_is_different() -> None:
    c, r, options = _busy()
    plain = run(c, replace(r, prefixes=None), options, Decider.of(Emptiest()), mode="interpreted")
    off = run(c, r, replace(options, prefix_blocks=0), Decider.of(Emptiest()), mode="interpreted")
    assert finishes(plain) == pytest.approx(finishes(off), nan_ok=True, abs=0.0)
    assert count(plain, "prompt_tokens") == 0
