"""The chain for tables of items: grouping against brute force, and the whole on rendered pages."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest
from trimtab_film.pages import group_duplicates, read_items, write_items

from trimtab.errors import ChainError

PAGES_EXTRA = ("rapidocr_onnxruntime", "py3langid", "wordllama", "PIL")


def brute_force_groups(vectors: np.ndarray, least: float) -> list[int]:
    """Label by repeated spreading of the least index over all similar pairs."""
    labels = list(range(len(vectors)))
    alike = vectors @ vectors.T >= least
    for _ in vectors:
        labels = [min(labels[j] for j in np.flatnonzero(alike[i])) for i in range(len(vectors))]
    return labels


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_the_connected_parts_of_similar_items(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(30, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    least = float(rng.uniform(0.9, 0.995))
    assert group_duplicates(vectors.tolist(), least) == brute_force_groups(vectors, least)


def test_no_items_are_no_groups() -> None:
    assert group_duplicates([]) == []


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_tables_are_read_and_written(form: str) -> None:
    frame, file = pl.DataFrame({"item": [7, 8], "text": ["one", "two"]}), io.BytesIO()
    if form == "parquet":
        frame.write_parquet(file)
    else:
        frame.write_ipc(file)
    items = read_items(file.getvalue())
    assert items == [{"item": "7", "text": "one"}, {"item": "8", "text": "two"}]
    out = pl.read_parquet(io.BytesIO(write_items(items, ["one", "two"], ["en", "en"], [0, 0])))
    assert out.to_dict(as_series=False) == {
        "item": ["7", "8"],
        "text": ["one", "two"],
        "language": ["en", "en"],
        "same_as": ["7", "7"],
    }


def test_an_empty_table_stays_one() -> None:
    out = pl.read_parquet(io.BytesIO(write_items([], [], [], [])))
    assert (out.columns, len(out)) == (["item", "text", "language", "same_as"], 0)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ChainError, match="table: cannot be read"):
        read_items(b"no table")
    file = io.BytesIO()
    pl.DataFrame({"item": [1], "body": ["x"]}).write_parquet(file)
    with pytest.raises(ChainError, match=r"lacks a column.*expected item, and page or text"):
        read_items(file.getvalue())


@pytest.fixture(scope="module")
def table() -> bytes:
    for package in PAGES_EXTRA:
        pytest.importorskip(package, reason="needs the extra pages")
    from trimtab_film.sample_pages import sample_table

    return sample_table()


@pytest.mark.slow
def test_pages_are_read_told_apart_and_grouped(table: bytes) -> None:
    """Names of the rendered pages say language and letter: those are the truth."""
    from trimtab_film.pages import Embed, Language, Recognise

    items = read_items(table)
    recognise, language, embed = Recognise(), Language(), Embed()
    texts = [recognise(item) for item in items]
    languages = [language(text) for text in texts]
    groups = group_duplicates(embed.embed(texts))
    true_languages = [item["item"].split("-")[0] for item in items]
    assert np.mean([a == b for a, b in zip(languages, true_languages, strict=True)]) >= 0.95
    letters = [item["item"].rsplit("-", 1)[0] for item in items]
    pairs = [(groups[i] == groups[j], letters[i] == letters[j]) for i in range(len(items)) for j in range(i)]
    assert np.mean([found == true for found, true in pairs]) >= 0.97


def test_what_is_no_picture_is_named(table: bytes) -> None:
    from trimtab_film.pages import Recognise

    with pytest.raises(ChainError, match="page of item 3: is no picture"):
        Recognise()({"item": "3", "page": b"text"})
