"""Small PNG files: a gradient between two colours that the prompt chooses."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib

SIDE_PIXELS = 64  # the longer side of what is really made


def base64_png(prompt: str, width: int, height: int) -> str:
    """A picture of this shape, made small, in base64."""
    scale = SIDE_PIXELS / max(width, height, SIDE_PIXELS)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    digest = hashlib.sha256(prompt.encode()).digest()
    pixels = b"".join(b"\0" + _colour(digest, row / rows) * columns for row in range(rows))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixels)),
        (b"IEND", b""),
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))).decode()


def _colour(digest: bytes, down_frac: float) -> bytes:
    return bytes(round(a + (b - a) * down_frac) for a, b in zip(digest[:3], digest[3:6], strict=True))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
