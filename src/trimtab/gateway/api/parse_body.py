"""Reads a request's facts from its path, query and body. No input raises an exception."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qs

import orjson

from trimtab.gateway.api.endpoints import path_id
from trimtab.gateway.api.facts import Document, facts_of
from trimtab.gateway.api.json_scan import JsonScan
from trimtab.gateway.api.multipart import KEPT_BYTES, MultipartScan, Part, boundary_of
from trimtab.gateway.api.prefix import chain
from trimtab.gateway.api.units import BYTES_PER_TOKEN, HASHED_CHARS, IMAGE_TOKENS
from trimtab.gateway.model import Endpoint, Facts, Kind, Refusal

WHOLE_BYTES: Final = 1 << 20
"""Bodies up to this size are parsed as a whole. Larger ones are scanned in pieces."""

_FORM_KINDS: Final = frozenset((Kind.IMAGE, Kind.TRANSCRIPTION, Kind.VIDEO, Kind.RELAY))
_MULTIPART: Final = "multipart/form-data"
_URLENCODED: Final = "application/x-www-form-urlencoded"
_JSON_TYPES: Final = frozenset(("", "application/json"))
_MAX_FIELDS: Final = 256

_PROMPTS: Final = ("messages", "input", "prompt", "system", "instructions")
_SCALARS: Final = (
    *("model", "stream", "stream_options", "n", "best_of", "size", "width", "height", "seconds", "duration"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "num_inference_steps", "steps"),
    *(
        "num_frames",
        "fps",
        "speed",
        "stream_format",
        "previous_response_id",
        "conversation",
        "prompt_cache_key",
    ),
)
_KEEP: Final = {**dict.fromkeys(_SCALARS, 4_096), **dict.fromkeys(_PROMPTS, HASHED_CHARS)}

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


def parse_body(endpoint: Endpoint, content_type: str, body: bytes) -> Facts | Refusal:
    """The facts of a whole body of at most WHOLE_BYTES. For longer ones use `body_scan`."""
    if content_type not in _JSON_TYPES and not _is_json(_media_type(content_type)):
        scan = body_scan(endpoint, content_type)
        if isinstance(scan, Refusal):
            return scan
        scan.feed(body)
        return scan.finish()
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _not_json(endpoint, str(error))
    if type(document) is not dict:
        return _not_json(endpoint, "it is no object")
    return facts_of(endpoint.kind, document)


def parse_query(endpoint: Endpoint, path: str, query: str = "") -> Facts | Refusal:
    """The facts of a request without a body: the model from the query, the response's id from the path."""
    try:
        models = parse_qs(query, max_num_fields=_MAX_FIELDS).get("model", [""]) if query else [""]
    except ValueError:
        models = []
    if len(models) != 1:
        message = "The query has more than one 'model', or too many parameters."
        return Refusal(400, "invalid_query", message, param="model")
    model = models[0]
    if endpoint.kind is Kind.REALTIME and not model:
        return Refusal(
            400, "missing_required_parameter", "Missing required parameter: 'model'.", param="model"
        )
    about = path_id(endpoint, path) if endpoint.kind is Kind.RESPONSE else ""
    return Facts(model, previous_response_id=about, wants_usage=True)


class Change(NamedTuple):
    """A replacement for the bytes of a body from `start` to `end`."""

    start: int
    end: int
    instead: bytes


class BodyScan(Protocol):
    """Reads a body in pieces, in bounded memory."""

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the body."""

    def finish(self) -> Facts | Refusal:
        """End the body. Returns its facts."""

    def renamed(self, model: str) -> Change | None:
        """The change that makes the complete body name this model; None = unknown."""


def body_scan(endpoint: Endpoint, content_type: str) -> BodyScan | Refusal:
    """The scanner of a body of this type, or a refusal (415) if the endpoint takes no such bodies."""
    media_type = _media_type(content_type)
    if _is_json(media_type):
        return _JsonBody(endpoint)
    if endpoint.kind in _FORM_KINDS:
        if media_type == _MULTIPART:
            boundary = boundary_of(content_type)
            return _MultipartBody(endpoint, boundary) if boundary else _bad_form("it names no boundary")
        if media_type == _URLENCODED:
            return _UrlencodedBody(endpoint)
    if endpoint.kind is Kind.RELAY:
        return _OpaqueBody()
    return Refusal(415, "unsupported_media_type", "This path takes no bodies of this Content-Type.")


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type in _JSON_TYPES or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )


def _not_json(endpoint: Endpoint, problem: str) -> Facts | Refusal:
    if endpoint.kind is Kind.RELAY:
        return Facts("", wants_usage=True)
    return Refusal(400, "invalid_json", f"We could not parse the JSON body of your request: {problem}")


def _bad_form(problem: str) -> Refusal:
    return Refusal(400, "invalid_form", f"We could not parse the form in the body of your request: {problem}")


class _JsonBody:
    """A large JSON body: chosen members only. The prompt's size and hashes are those of its JSON text."""

    __slots__ = ("_endpoint", "_scan")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._scan = JsonScan(_KEEP)

    def feed(self, chunk: bytes) -> None:
        self._scan.feed(chunk)

    def finish(self) -> Facts | Refusal:
        scan = self._scan
        if scan.problem or not scan.done:
            return _not_json(self._endpoint, scan.problem or "it ends too early")
        document: Document = {}
        for name in _SCALARS:
            raw = scan.raw(name)
            if raw is not None:
                try:
                    document[name] = orjson.loads(raw)
                except orjson.JSONDecodeError as error:
                    return _not_json(self._endpoint, f"{name}: {error}")
        facts = facts_of(self._endpoint.kind, document)
        if isinstance(facts, Refusal):
            return facts
        tokens = scan.text_bytes / BYTES_PER_TOKEN + scan.media * IMAGE_TOKENS
        text = "".join(scan.beginning(name).decode("utf-8", "replace") for name in _PROMPTS)
        return replace(facts, prompt_tokens=tokens, prefix_blocks=chain(facts.model, text))

    def renamed(self, model: str) -> Change | None:
        at = self._scan.found.get("model")
        return None if at is None else Change(*at, orjson.dumps(model))


class _MultipartBody:
    """A form with files."""

    __slots__ = ("_endpoint", "_scan")

    def __init__(self, endpoint: Endpoint, boundary: bytes) -> None:
        self._endpoint = endpoint
        self._scan = MultipartScan(boundary)

    def feed(self, chunk: bytes) -> None:
        self._scan.feed(chunk)

    def finish(self) -> Facts | Refusal:
        scan = self._scan
        if scan.problem or not scan.done:
            return _bad_form(scan.problem or "it ends too early")
        fields = [part for part in scan.parts if not part.is_file]
        facts = _form_facts(
            self._endpoint, [(part.name, part.text) for part in fields if part.size <= KEPT_BYTES]
        )
        if isinstance(facts, Refusal) or self._endpoint.kind is not Kind.TRANSCRIPTION:
            return facts
        return replace(facts, audio_s=sum(_audio_s(part) for part in scan.parts if part.is_file))

    def renamed(self, model: str) -> Change | None:
        parts = [part for part in self._scan.parts if part.name == "model" and not part.is_file]
        if len(parts) != 1:
            return None
        return Change(parts[0].at, parts[0].at + parts[0].size, model.encode())


def _audio_s(part: Part) -> float:
    return audio_seconds(bytes(part.kept[:4_096]), part.size)


def _form_facts(endpoint: Endpoint, fields: list[tuple[str, str]]) -> Facts | Refusal:
    document: dict[str, Any] = {}
    for name, value in fields:
        if name == "model" and name in document:
            return Refusal(
                400, "duplicate_parameter", "'model' is in the form more than once.", param="model"
            )
        document[name] = value
    return facts_of(endpoint.kind, document)


class _UrlencodedBody:
    """A form without files, of limited size."""

    __slots__ = ("_body", "_endpoint")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        if len(self._body) <= WHOLE_BYTES:
            self._body += chunk

    def finish(self) -> Facts | Refusal:
        if len(self._body) > WHOLE_BYTES:
            return Refusal(413, "too_large", "A form of this type may have at most 1 MiB.")
        try:
            text = self._body.decode("utf-8", "replace")
            fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            return _bad_form("it has too many fields")
        return _form_facts(self._endpoint, [(name, value) for name in fields for value in fields[name]])

    def renamed(self, model: str) -> Change | None:
        return None  # bodies of this type are never that long


class _OpaqueBody:
    """A relayed body of an unknown type, without facts."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> None:
        pass

    def finish(self) -> Facts | Refusal:
        return Facts("", wants_usage=True)

    def renamed(self, model: str) -> Change | None:
        return None  # it names no model


def audio_seconds(head: bytes, size: int) -> float:
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
