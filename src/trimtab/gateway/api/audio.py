"""Estimates the duration of a sound file from its first bytes and its size."""

from __future__ import annotations

import struct
from typing import Final

_WAV_HEADER: Final = struct.Struct("<4s4x4s")
_CHUNK: Final = struct.Struct("<4sI")
_BYTE_RATE: Final = struct.Struct("<8xI")
_MIN_BYTE_RATE: Final = 1_000

BYTES_PER_S: Final = (
    (b"ID3", 16_000.0),  # MP3 at 128 kbit/s
    (b"\xff\xfb", 16_000.0),
    (b"\xff\xf3", 8_000.0),  # MP3 of low sampling rates
    (b"OggS", 4_000.0),  # Opus for speech at 32 kbit/s
    (b"\x1aE\xdf\xa3", 4_000.0),  # WebM
    (b"fLaC", 60_000.0),  # FLAC, 16 kHz to 44.1 kHz
)
"""First bytes of a file → usual bytes per second of its format."""
DEFAULT_BYTES_PER_S: Final = 16_000.0
"""Bytes per second of all other formats, such as M4A."""


def seconds(head: bytes, size: int) -> float:
    """Duration of a file of `size` bytes that begins with `head`: exact for WAV, else by its format."""
    wav = _wav_seconds(head, size)
    if wav:
        return wav
    for magic, bytes_per_s in BYTES_PER_S:
        if head.startswith(magic):
            return size / bytes_per_s
    return size / DEFAULT_BYTES_PER_S


def _wav_seconds(head: bytes, size: int) -> float:
    """0 = not a WAV file. Uses the file's size, because streams leave the header's lengths open."""
    if len(head) < 12 or _WAV_HEADER.unpack_from(head) != (b"RIFF", b"WAVE"):
        return 0.0
    at, byte_rate = 12, 0
    while at + _CHUNK.size <= len(head):
        name, length = _CHUNK.unpack_from(head, at)
        at += _CHUNK.size
        if name == b"fmt " and at + 12 <= len(head):
            byte_rate = _BYTE_RATE.unpack_from(head, at)[0]
        if name == b"data":
            break
        at += length + length % 2
    return max(size - at, 0) / byte_rate if byte_rate >= _MIN_BYTE_RATE else 0.0
