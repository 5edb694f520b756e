"""Whole records of arrays in one call: a write to each field takes several times as long."""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct

import numpy as np


def record_struct(kind: np.dtype, written: Collection[str] | None = None) -> Struct:
    """A struct of these fields (None = all) in the order of their offsets. Other fields become zero."""
    codes, at = [], 0
    for name, (field, offset, *_) in (kind.fields or {}).items():  # in order of offsets
        is_written = written is None or name in written
        code = {"l": "q"}.get(field.char, field.char) if is_written else f"{field.itemsize}x"
        codes.append(f"{offset - at}x{code}")
        at = offset + field.itemsize
    return Struct("=" + "".join(codes) + f"{kind.itemsize - at}x")
