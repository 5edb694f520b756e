"""The page says what was measured; nothing that was measured is better than possible."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from bench.ages import without_age
from bench.caches import PAGE, RESULTS, models, prefixes, results
from bench.caches_page import page


def lru_hits(keys: list[int], size: np.ndarray, capacity: float) -> int:
    """Least recently used, by the book."""
    held, hits = OrderedDict[int, None](), 0
    for key in keys:
        hits += key in held
        held.pop(key, None)
        while sum(size[k] for k in held) + size[key] > capacity + 1e-9:
            held.popitem(last=False)
        held[key] = None
    return hits


@pytest.fixture
def keys() -> np.ndarray:
    weight = np.arange(1, 31) ** -0.8
    return np.random.default_rng(5).choice(30, 400, p=weight / weight.sum())


def test_models_of_one_size(keys: np.ndarray) -> None:
    hits = models(keys, np.ones(30), 0.2, 0.8)
    assert hits["LRU"] == hits["GreedyDual-Size"] == lru_hits(keys.tolist(), np.ones(30), 6.0)
    assert hits["LRU"] < hits["pinned"] < hits["Belady"] <= hits["bound"]
    assert hits["feasible"] <= hits["Belady"]


def test_models_of_many_sizes(keys: np.ndarray) -> None:
    size = np.random.default_rng(6).choice([1.0, 2.0, 5.0], 30)
    hits = models(keys, size, 0.2, 0.8)
    assert hits["LRU"] == lru_hits(keys.tolist(), size, 0.2 * size.sum())
    assert hits["LRU"] < hits["GreedyDual-Size"] < hits["feasible"] <= hits["bound"]


def test_pinned_items_are_hits_whenever_they_are_asked_for(keys: np.ndarray) -> None:
    """Room for six of one size: five are pinned, and loaded before any request comes; the sixth changes."""
    others = keys[keys >= 5]
    expected = (keys < 5).sum() + (np.diff(others) == 0).sum()
    assert models(keys, np.ones(30), 0.2, 0.8)["pinned"] == expected


def test_results_and_prefixes(keys: np.ndarray) -> None:
    assert results(keys, 6)["LRU"] == lru_hits(keys.tolist(), np.ones(30), 6.0)
    found = prefixes(keys, 1_000_000)
    assert found["LRU"] == found["Belady"] == 4 * (len(keys) - len(np.unique(keys)))  # all that come again
    tight = prefixes(keys, 24)
    assert 0 < tight["LRU"] < tight["Belady"]


def test_nothing_saved_beats_what_is_possible() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 36
    for row in rows:
        hits = {name: np.array(values) for name, values in row["hit_frac"].items()}
        most = hits["Belady"] if "Belady" in hits else hits["bound"]
        for name in hits.keys() - {"bound", "Belady"}:
            assert (hits[name] <= most).all()
        assert (most <= hits.get("bound", 1.0)).all()


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(json.loads(RESULTS.read_text(encoding="utf-8")))
