"""Texts packed for a page: compressed, and written with characters that HTML leaves alone.

The page unpacks them with `unpacked` of assets/page.js. A script of 1.5 MB takes 0.62 MB.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


def json_text(value: Mapping[str, Any]) -> str:
    """One JSON object as text; nan and infinity become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
