"""Reads named samples out of a page in Prometheus' text format, at C speed.

A page of an exporter has a thousand lines of which a few matter, so one pattern over the bytes finds the
lines instead of a parser that reads each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

KV_CACHES = {  # labels of the number and the size of blocks of KV memory
    "vllm:cache_config_info": ("num_gpu_blocks", "block_size"),
    "sglang:cache_config_info": ("num_pages", "page_size"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels_text: str
    value: float

    @property
    def labels(self) -> dict[str, str]:
        """The labels, parsed when asked for."""
        found = _LABEL.findall(self.labels_text)
        return {name: _ESCAPED.sub(_unescape, text) for name, text in found}

    def label(self, name: str) -> str:
        """One label; "" = it has none of this name."""
        return self.labels.get(name, "")


class SampleFinder:
    """Finds the samples of given names in pages."""

    def __init__(self, names: Iterable[str]) -> None:
        alternatives = b"|".join(re.escape(name.encode()) for name in sorted(names, key=len, reverse=True))
        self._line = re.compile(
            rb"^(" + alternatives + rb')[ \t]*(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+(\S+)',
            re.MULTILINE,
        )

    def samples(self, page: bytes) -> Iterator[Sample]:
        """Samples in the order of the page; malformed lines and NaN are skipped."""
        for name, labels, value in self._line.findall(page):
            number = _number(value)
            if number == number:
                yield Sample(name.decode(), labels.decode(errors="replace"), number)


def pieces(page: bytes, size: int) -> Iterator[bytes]:
    """The page in pieces of whole lines, of about `size` bytes."""
    start = 0
    while start < len(page):
        end = page.find(b"\n", start + size)
        end = len(page) if end < 0 else end + 1
        yield page[start:end]
        start = end


def kv_tokens(sample: Sample) -> float:
    """Tokens that the KV memory of an engine holds, by a sample of KV_CACHES; 0: its labels do not say."""
    many, size = (sample.label(name) for name in KV_CACHES[sample.name])
    return float(many) * float(size) if many.isdigit() and size.isdigit() else 0.0


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
