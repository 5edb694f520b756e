"""Extracts the text of a prompt from the forms that the APIs allow, and estimates its tokens."""

from __future__ import annotations

from typing import Any, Final

import orjson

from trimtab.gateway.api.prefix import chain
from trimtab.gateway.api.units import (
    AUDIO_TOKENS_PER_S,
    BYTES_PER_TOKEN,
    HASHED_CHARS,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
)

_MAX_DEPTH: Final = 4  # the content of a part of a message's content, plus one
_SAMPLE: Final = 512  # characters of a picture's text that distinguish it from other pictures
_AUDIO_BYTES_PER_S: Final = 32_000.0  # 16 bits, 16 kHz
_IMAGE_TYPES: Final = frozenset(("image", "image_url", "input_image"))
_AUDIO_TYPES: Final = frozenset(("input_audio", "audio", "audio_url"))
_TEXT_KEYS: Final = ("text", "content", "arguments", "output", "name", "refusal", "thinking")
_TREE_KEYS: Final = ("tool_calls", "input", "source")


class Prompt:
    """Collects the parts of one prompt in their order."""

    __slots__ = ("_pieces", "_tokens")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._tokens = 0.0  # tokens of parts that are not text

    def add_messages(self, messages: Any) -> None:
        """Add a list of messages or items. Other values are ignored."""
        if type(messages) is not list:
            self.add(messages)
            return
        pieces = self._pieces
        for message in messages:
            if type(message) is not dict:
                self.add(message)
                continue
            self._tokens += MESSAGE_TOKENS
            role = message.get("role")
            if type(role) is str:
                pieces.append(role)
            content = message.get("content")
            if type(content) is str and len(message) == 2:
                pieces.append(content)
            else:
                self._add_parts(message, 0)

    def add(self, value: Any, depth: int = 0) -> None:
        """Add a text, a list of parts, or one part."""
        if type(value) is str:
            self._pieces.append(value)
        elif type(value) is list:
            self._add_list(value, depth)
        elif type(value) is dict:
            self._add_parts(value, depth)

    def add_tree(self, value: Any) -> None:
        """Add a structure that the model reads as JSON, such as its tools."""
        if value:
            try:
                self._pieces.append(orjson.dumps(value).decode())
            except orjson.JSONEncodeError:  # nested deeper than orjson can write
                self._tokens += 1.0

    def _add_list(self, values: list[Any], depth: int) -> None:
        if values and type(values[0]) is int:
            self._tokens += len(values)
            self._add_mark(",".join(map(str, values[: HASHED_CHARS // 2])))
        elif depth < _MAX_DEPTH:
            for value in values:
                self.add(value, depth + 1)

    def _add_parts(self, part: dict[Any, Any], depth: int) -> None:
        kind = part.get("type")
        if type(kind) is str and kind in _IMAGE_TYPES:
            self._add_media(part, IMAGE_TOKENS)
        elif type(kind) is str and kind in _AUDIO_TYPES:
            self._add_media(part, 0.0)
        elif depth <= _MAX_DEPTH:
            for key in _TEXT_KEYS:
                if key in part:
                    self.add(part[key], depth + 1)
            for key in _TREE_KEYS:
                if key in part:
                    self.add_tree(part[key])

    def _add_media(self, part: dict[Any, Any], tokens: float) -> None:
        """Add a picture with a fixed number of tokens, or a sound by its duration."""
        texts: list[str] = []
        _collect_texts(part, texts, 0)
        longest = max(texts, key=len, default="")
        middle = len(longest) // 2
        ends = longest[:_SAMPLE] + longest[middle : middle + _SAMPLE] + longest[-_SAMPLE:]
        self._add_mark(f"{len(longest)}:{ends}")
        self._tokens += tokens or len(longest) * 0.75 / _AUDIO_BYTES_PER_S * AUDIO_TOKENS_PER_S

    def _add_mark(self, mark: str) -> None:
        """Add text that distinguishes prefixes but is not part of the prompt."""
        self._pieces.append(mark)
        self._tokens -= len(mark.encode()) / BYTES_PER_TOKEN

    def finish(self, model: str) -> tuple[float, tuple[int, ...]]:
        """The estimated tokens, and the hashes of the blocks of the prompt's beginning."""
        text = "\0".join(self._pieces)
        n_bytes = len(text) if text.isascii() else len(text.encode())
        return max(n_bytes / BYTES_PER_TOKEN + self._tokens, 1.0), chain(model, text)


def _collect_texts(value: Any, texts: list[str], depth: int) -> None:
    if type(value) is str:
        texts.append(value)
    elif type(value) is dict and depth < _MAX_DEPTH:
        for item in value.values():
            _collect_texts(item, texts, depth + 1)
