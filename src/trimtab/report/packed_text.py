"""Texts packed for a page: compressed, and written with characters that HTML leaves alone.

The page unpacks them with `unpacked` of assets/page.js. A script of 1.5 MB takes 0.62 MB.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

_FIRST, _LEFT_OUT = ord("#"), ord("<")  # 85 characters from "#" to "x", without "<"
_PLACES = 85 ** np.arange(4, -1, -1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PackedText:
    """Five digits to the base 85 for four bytes of a raw deflate stream, which has `n_bytes`."""

    digits: str
    n_bytes: int


def packed(text: str) -> PackedText:
    """Pack a text as UTF-8."""
    compressor = zlib.compressobj(6, wbits=-15)
    stream = compressor.compress(text.encode()) + compressor.flush()
    words = np.frombuffer(stream + bytes(-len(stream) % 4), ">u4").astype(np.int64)
    digits = words[:, None] // _PLACES % 85 + _FIRST
    digits += digits >= _LEFT_OUT
    return PackedText(digits.astype(np.uint8).tobytes().decode("ascii"), len(stream))
