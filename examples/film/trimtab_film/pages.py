"""Stages for tables of items, without torch: pages → text → language → vector → groups of near-duplicates.

A table is a Parquet or Arrow IPC file as bytes, with a column `item` (a name) and a column `page` (a PNG or
JPEG file) or `text`. The models come with their packages, so nothing is downloaded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from trimtab.errors import ChainError
from trimtab_film.extras import require

ARROW_MAGIC = b"ARROW1"
LARGEST_SIDE_PX = 960  # in which lines of text are looked for
Item = dict[str, Any]


def read_items(table: bytes | str) -> list[dict[str, Any]]:
    """Read a table, or the file of that path, row by row. Raises ChainError where a column is missing."""
    try:
        table = Path(table).read_bytes() if isinstance(table, str) else table
        frame = (
            pl.read_ipc(io.BytesIO(table))
            if table.startswith(ARROW_MAGIC)
            else pl.read_parquet(io.BytesIO(table))
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ChainError(
            f"cannot be read: {error}", field="table", expected="a Parquet or Arrow IPC file"
        ) from None
    if "item" not in frame.columns or not {"page", "text"} & set(frame.columns):
        raise ChainError(
            "lacks a column", field="table", value=frame.columns, expected="item, and page or text"
        )
    return frame.select(
        pl.col("item").cast(pl.String), *(c for c in ("page", "text") if c in frame.columns)
    ).to_dicts()


class Recognise:
    """Reads the text of a page (RapidOCR's models, in ONNX Runtime)."""

    def __init__(self, threads: int = 1) -> None:
        require("pages", "reading pages", "rapidocr_onnxruntime", "PIL")
        from rapidocr_onnxruntime import RapidOCR

        self._read = RapidOCR(
            intra_op_num_threads=threads,
            inter_op_num_threads=threads,
            det_limit_type="max",  # its default enlarges small pages, which takes ten times as long
            det_limit_side_len=LARGEST_SIDE_PX,
        )

    def __call__(self, item: dict[str, Any]) -> str:
        """Return the text of an item: its own where it has one, else what its page shows, line after line."""
        if item.get("text"):
            return str(item["text"])
        lines, _ = self._read(_pixels(item["page"], item["item"]))
        return "\n".join(line[1] for line in lines or [])


def _pixels(page: bytes, item: str) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(page)).convert("RGB")
    except (UnidentifiedImageError, TypeError) as error:
        raise ChainError(
            f"is no picture: {error}", field=f"page of item {item}", expected="a PNG or JPEG file"
        ) from None
    return np.asarray(picture)[..., ::-1]  # the models take blue first


class Language:
    """Tells the language of a text."""

    def __init__(self) -> None:
        require("pages", "telling languages", "py3langid")
        import py3langid

        self._classify = py3langid.classify

    def __call__(self, text: str) -> str:
        """Return the ISO 639-1 code; "" for an empty text."""
        return str(self._classify(text)[0]) if text.strip() else ""


class Embed:
    """Embeds texts as vectors (WordLlama: means of word vectors, 256 numbers)."""

    def __init__(self) -> None:
        require("pages", "embedding texts", "wordllama")
        import wordllama

        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    def __call__(self, text: str) -> list[float]:
        """Embed one text as a vector of length 1."""
        return self.embed([text])[0]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed several texts at once."""
        vectors = np.asarray(self._model.embed(list(texts)), dtype=np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(lengths > 0, lengths, 1.0)).tolist()


def group_duplicates(vectors: list[list[float]], least_cosine: float = 0.8) -> list[int]:
    """Group items joined by a path of pairs that are as similar as that; the first item numbers the group."""
    groups = list(range(len(vectors)))

    def first_of(k: int) -> int:
        while groups[k] != k:
            groups[k] = groups[groups[k]]
            k = groups[k]
        return k

    matrix = np.asarray(vectors, dtype=np.float64)
    for k in range(len(vectors)):
        for other in np.flatnonzero(matrix[:k] @ matrix[k] >= least_cosine):
            first, second = sorted((first_of(int(other)), first_of(k)))
            groups[second] = first
    return [first_of(k) for k in range(len(vectors))]


def write_items(
    items: list[dict[str, Any]], texts: list[str], languages: list[str], groups: list[int]
) -> bytes:
    """Write Parquet: item, text, language, and the first item of the group of near-duplicates."""
    names = [item["item"] for item in items]
    frame = pl.DataFrame(
        {"item": names, "text": texts, "language": languages, "same_as": [names[group] for group in groups]},
        schema=dict.fromkeys(("item", "text", "language", "same_as"), pl.String),
    )
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()
