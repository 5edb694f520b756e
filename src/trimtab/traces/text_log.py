"""What all logs whose lines become rows have in common: fields of a line, told from text in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl


@dataclass(frozen=True, slots=True)
class TextLog:
    """How the lines of a log become rows.

    Attributes:
        name: of the format.
        columns: of the rows.
        parse: text of whole lines → rows; a line that is no request is a row without values.
        signs: the lines that it is recognised by, in words.
        row: what a row is called in messages: "line" where each line is one.
        is_whole: whether the file is parsed as a whole, because a request spans several lines.
    """

    name: str
    columns: tuple[str, ...]
    parse: Callable[[str], pl.DataFrame]
    signs: str
    row: str = "line"
    is_whole: bool = False


QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|['"].*$)"""
"""Text in quotes, as Python shows it; the rest of a line whose last quote was cut off."""


def lines_of(text: str) -> pl.DataFrame:
    """A column `line`, without the ends of lines."""
    return pl.Series("line", text.removesuffix("\n").split("\n")).str.strip_suffix("\r").to_frame()
