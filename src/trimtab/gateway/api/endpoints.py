"""The allow-list of paths for clients. Backends also expose paths such as cache flushing and adapter loading.

A path is compared byte for byte, as the client wrote it. The gateway does not decode or normalise it. So
variants that another server would accept (`%2e`, `//`, `;`, a trailing slash, other case) are unknown paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

from trimtab.errors import ConfigError
from trimtab.gateway.model import Dialect, Endpoint, Kind, Refusal

_GET: Final = ("GET", "HEAD")
_POST: Final = ("POST",)

_INFERENCE: Final = (
    ("/v1/chat/completions", Kind.CHAT, Dialect.OPENAI),
    ("/v1/completions", Kind.COMPLETION, Dialect.OPENAI),
    ("/v1/responses", Kind.RESPONSE, Dialect.OPENAI),
    ("/v1/embeddings", Kind.EMBEDDING, Dialect.OPENAI),
    ("/v1/rerank", Kind.RERANK, Dialect.OPENAI),
    ("/v2/rerank", Kind.RERANK, Dialect.OPENAI),
    ("/v1/score", Kind.RERANK, Dialect.OPENAI),
    ("/v1/messages", Kind.MESSAGES, Dialect.ANTHROPIC),
    ("/v1/messages/count_tokens", Kind.COUNT_TOKENS, Dialect.ANTHROPIC),
    ("/v1/images/generations", Kind.IMAGE, Dialect.OPENAI),
    ("/v1/images/edits", Kind.IMAGE, Dialect.OPENAI),
    ("/v1/images/variations", Kind.IMAGE, Dialect.OPENAI),
    ("/v1/audio/speech", Kind.SPEECH, Dialect.OPENAI),
    ("/v1/audio/transcriptions", Kind.TRANSCRIPTION, Dialect.OPENAI),
    ("/v1/audio/translations", Kind.TRANSCRIPTION, Dialect.OPENAI),
)

BUILT_IN: Final = (
    *(Endpoint(path, _POST, kind, dialect, replayable=True) for path, kind, dialect in _INFERENCE),
    Endpoint("/v1/responses/{id}", (*_GET, "DELETE"), Kind.RESPONSE),
    Endpoint("/v1/responses/{id}/cancel", _POST, Kind.RESPONSE),
    Endpoint("/v1/responses/{id}/input_items", _GET, Kind.RESPONSE),
    Endpoint("/v1/realtime", ("GET",), Kind.REALTIME),
    Endpoint("/v1/videos", (*_GET, "POST"), Kind.VIDEO, local=True),
    Endpoint("/v1/videos/{id}", (*_GET, "DELETE"), Kind.VIDEO, local=True),
    Endpoint("/v1/videos/{id}/content", _GET, Kind.VIDEO, local=True),
    Endpoint("/v1/videos/{id}/remix", _POST, Kind.VIDEO, local=True),
    Endpoint("/v1/jobs", _GET, Kind.JOB, local=True),
    Endpoint("/v1/jobs/{id}", (*_GET, "DELETE"), Kind.JOB, local=True),
    Endpoint("/v1/jobs/{id}/cancel", _POST, Kind.JOB, local=True),
    Endpoint("/v1/jobs/{id}/result", _GET, Kind.JOB, local=True),
    Endpoint("/v1/chains", _GET, Kind.CHAIN, local=True),
    Endpoint("/v1/chains/{id}", (*_GET, "POST"), Kind.CHAIN, local=True),
    Endpoint("/v1/files", (*_GET, "POST"), Kind.BATCH, local=True),
    Endpoint("/v1/files/{id}", (*_GET, "DELETE"), Kind.BATCH, local=True),
    Endpoint("/v1/files/{id}/content", _GET, Kind.BATCH, local=True),
    Endpoint("/v1/batches", (*_GET, "POST"), Kind.BATCH, local=True),
    Endpoint("/v1/batches/{id}", _GET, Kind.BATCH, local=True),
    Endpoint("/v1/batches/{id}/cancel", _POST, Kind.BATCH, local=True),
    Endpoint("/v1/models", _GET, Kind.MODELS, local=True),
    Endpoint("/v1/models/{id}", _GET, Kind.MODELS, local=True),
    Endpoint("/health", _GET, Kind.HEALTH, local=True),
    Endpoint("/ready", _GET, Kind.READY, local=True),
)
"""All paths of the gateway except the configured `relay_paths`."""

_MODELS_PREFIX: Final = "/v1/models/"
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:~-]{0,255}")
_PARAMETER: Final = re.compile(r"\{[a-z_]+\}")
_MAX_SEGMENTS: Final = 12
_PATH: Final = re.compile(r"/[\x21-\x7e]*")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)


class Target(NamedTuple):
    """The parts of a request line's target."""

    path: str
    query: str  # without the question mark
    origin: bytes  # path and query, as sent to the node


def split_target(target: bytes) -> Target | Refusal:
    """Path and query of a request's target. The absolute form of proxies is accepted too."""
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        return _bad_target()
    if not text.startswith("/"):
        authority = _ABSOLUTE.match(text)
        if authority is None:
            return _bad_target()
        rest = text[authority.end() :]
        text = rest if rest.startswith("/") else "/" + rest
    if "#" in text or _PATH.fullmatch(text) is None:
        return _bad_target()
    path, _, query = text.partition("?")
    return Target(path, query, text.encode("ascii"))


def _bad_target() -> Refusal:
    return Refusal(400, "invalid_target", "The target of the request is not a path.")


class Endpoints:
    """The allow-list as tables. `find` takes one or two look-ups."""

    __slots__ = ("_exact", "_with_id")

    def __init__(self, relay_paths: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        """`relay_paths`: (path, methods) pairs; a path may have one `{id}` segment. Raises ConfigError."""
        self._exact: dict[str, Endpoint] = {}
        self._with_id: dict[str, Endpoint] = {}
        for endpoint in BUILT_IN:
            self._enter(endpoint)
        for path, methods in relay_paths:
            self._enter(_relay(path, tuple(method.upper() for method in methods)))

    def _enter(self, endpoint: Endpoint) -> None:
        pattern, parameters = _PARAMETER.subn("{}", endpoint.path)
        table = self._with_id if parameters else self._exact
        if pattern in table:
            raise ConfigError(
                "this path is there already",
                field="relay_paths",
                value=endpoint.path,
                expected="another path",
            )
        table[pattern] = endpoint

    def find(self, method: str, path: str) -> Endpoint | Refusal:
        """The endpoint of a path without its query; 404 for an unknown path, 405 for a wrong method."""
        endpoint = self._exact.get(path) or self._find_with_id(path)
        if endpoint is None:
            return Refusal(404, "unknown_path", f"There is no such path: {method} {path[:200]}")
        if method not in endpoint.methods:
            allowed = ", ".join(endpoint.methods)
            return Refusal(
                405, "method_not_allowed", f"This path knows {allowed} only.", allow=endpoint.methods
            )
        return endpoint

    def _find_with_id(self, path: str) -> Endpoint | None:
        if path.startswith(_MODELS_PREFIX):  # the gateway answers it; model names may contain slashes
            return self._with_id[_MODELS_PREFIX + "{}"] if len(path) > len(_MODELS_PREFIX) else None
        segments = path.split("/", _MAX_SEGMENTS)
        for place in range(len(segments) - 1, 0, -1):
            segment = segments[place]
            endpoint = self._with_id.get("/".join((*segments[:place], "{}", *segments[place + 1 :])))
            if endpoint is not None and _ID.fullmatch(segment):
                return endpoint
        return None


def _relay(path: str, methods: tuple[str, ...]) -> Endpoint:
    plain = path.startswith("/") and re.fullmatch(r"(/[A-Za-z0-9_.~-]+)+", _PARAMETER.sub("id", path))
    if not plain or len(_PARAMETER.findall(path)) > 1 or {".", ".."} & set(path.split("/")):
        raise ConfigError(
            "not a path that can be relayed", field="relay_paths", value=path, expected="such as /v1/tokenize"
        )
    if not methods or not all(re.fullmatch("[A-Z]+", method) for method in methods):
        raise ConfigError("not methods", field="relay_paths", value=methods, expected="such as [POST]")
    return Endpoint(path, methods, Kind.RELAY)


def path_id(endpoint: Endpoint, path: str) -> str:
    """The value of the path's parameter (a response, a job, a model); empty = no parameter."""
    place = endpoint.path.find("{")
    if place < 0:
        return ""
    if endpoint.kind is Kind.MODELS:
        return unquote(path[place:])
    return path[place:].partition("/")[0]
