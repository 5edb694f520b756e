"""Admission: determines a request's endpoint, tenant, hints, facts and model before it is dispatched."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl, urlencode
from zlib import crc32

import orjson

from trimtab.gateway.api.cors import PREFLIGHT, Cors
from trimtab.gateway.api.endpoints import Endpoints, path_id
from trimtab.gateway.api.parse_body import BodyScan, Change, body_scan, parse_body, parse_query
from trimtab.gateway.config.routes import Resolved
from trimtab.gateway.model import Exchange, Facts, Kind, Refusal, Tenant

if TYPE_CHECKING:
    from trimtab.gateway.tenancy.tenant_limits import Limits

Headers = Mapping[bytes, bytes]

MAX_PRIORITY = 1_000
MAX_DEADLINE_MS = 7 * 86_400_000
_NAME = re.compile(rb"[A-Za-z0-9._:/@-]{1,128}")
_NUMBER = re.compile(rb"-?[0-9]{1,9}")
_PREFERENCE: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # a comma in quotes is no border
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_STREAMED_KINDS = (Kind.CHAT, Kind.COMPLETION)  # kinds with `stream_options`

_HEALTH, _READY, _REALTIME = Kind.HEALTH, Kind.READY, Kind.REALTIME
IDS_AT_ONCE = 256

NO_KEY = Refusal(401, "invalid_api_key", "The API key is missing or not known.")


class Ids:
    """Random request ids of 32 hexadecimal digits, generated in batches."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[str] = []

    def __call__(self) -> str:
        """The next id."""
        left = self._left
        if not left:
            digits = secrets.token_hex(16 * IDS_AT_ONCE)
            left += [digits[at : at + 32] for at in range(0, len(digits), 32)]
        return left.pop()


_next_id = Ids()


def no_tenant(name: str) -> Tenant | None:
    """Default: no request may name a tenant."""
    return None


def all_ready(model: str) -> bool:
    """Default: every model has a ready node."""
    return True


def stated_tokens(facts: Facts) -> float:
    """Tokens that a request may use, for its tenant's limit, before a better estimate exists."""
    return facts.prompt_tokens + facts.max_tokens * facts.answers


class RequestHead(Protocol):
    """The head of a client's request, whatever brought it. Header names are in lower case."""

    @property
    def headers(self) -> Headers:
        """The headers."""

    @property
    def content_type(self) -> str:
        """The content type; "" = none."""

    @property
    def given_id(self) -> str:
        """The client's request id, if well-formed; "" = none."""

    @property
    def hinted(self) -> bool:
        """Whether it has x-trimtab-* headers, a traceparent or a content coding."""

    @property
    def key_digest(self) -> bytes:
        """SHA-256 of the client's key."""

    @property
    def websocket(self) -> bool:
        """Whether it asks for a WebSocket."""


class ClientExchange(Exchange):
    """An exchange of a client: its request's head, and what admission finds out."""

    __slots__ = ("admitted", "asks_usage", "is_local", "own_lines", "request")

    def __init__(self, request: RequestHead) -> None:
        Exchange.__init__(self)
        self.request = request
        self.is_local = False  # True = the gateway answers the request itself
        self.asks_usage = False  # True = the gateway requests the stream's usage, the client does not
        self.own_lines = b""  # further header lines of its response: limits, allowed origins
        self.admitted: tuple[Limits, float] | None = None  # limits that count the request, and its tokens

    def change_spooled(self, change: Change) -> None:
        """Change a body that is not in memory."""
        raise NotImplementedError

    def settle_limits(self) -> None:
        """The request is over: its tenant's limits count what it has used."""
        if self.admitted is not None:
            limits, tokens = self.admitted
            limits.settle(tokens, self.usage, self.attempts)


@dataclass(slots=True)
class Admission:
    """Admits requests. A reload replaces its fields while the gateway runs."""

    endpoints: Endpoints
    by_digest: Callable[[bytes], Tenant | None]  # of a key, by SHA-256
    tenant_named: Callable[[str], Tenant | None] = no_tenant
    routes: Mapping[str, Resolved] = field(default_factory=dict)
    known: Callable[[str], bool] = all_ready  # a node has it, ready or not
    ready: Callable[[str], bool] = all_ready  # a ready node has it
    tokens: Callable[[Facts], float] = stated_tokens
    count_usage: bool = False
    cors: Cors | None = None
    jobs: bool = False  # `Prefer: respond-async` makes a job
    now_s: Callable[[], float] = monotonic  # the event loop's clock

    def head(self, exchange: ClientExchange) -> Refusal | None:
        """Check a request's head. Sets endpoint, tenant, id and hints. Returns a refusal, or None."""
        request = exchange.request
        exchange.id = request.given_id or _next_id()
        if request.hinted:
            exchange.traceparent = _trace(request.headers)
        if self.cors is not None and (origin := request.headers.get(b"origin")):
            exchange.own_lines = self.cors.lines(origin)
            if exchange.method == "OPTIONS" and b"access-control-request-method" in request.headers:
                exchange.endpoint, exchange.is_local = PREFLIGHT, True
                return None
        found = self.endpoints.find(exchange.method, exchange.path)
        if isinstance(found, Refusal):
            return found
        exchange.endpoint = found
        exchange.is_local = found.local
        kind = found.kind
        if kind is _HEALTH or kind is _READY:
            return None
        tenant = self.by_digest(request.key_digest)
        if tenant is None:
            return NO_KEY
        exchange.tenant = tenant
        exchange.background = tenant.background
        if kind is _REALTIME and not request.websocket:
            return Refusal(426, "websocket_only", "This path speaks WebSocket only.")
        if self.jobs and found.replayable and (prefer := request.headers.get(b"prefer")):
            exchange.is_local = wants_async(prefer)
        return self._hints(exchange, request.headers, tenant) if request.hinted else None

    def _hints(self, exchange: ClientExchange, headers: Headers, tenant: Tenant) -> Refusal | None:
        coding, endpoint = headers.get(b"content-encoding", b"identity"), exchange.endpoint
        is_coded = coding.strip().lower() != b"identity"
        if is_coded and endpoint is not None and endpoint.kind is not Kind.RELAY:
            return Refusal(415, "content_encoding", "Bodies of requests must not be compressed.")
        session = headers.get(b"x-trimtab-session")
        if session is not None:
            if not _NAME.fullmatch(session):
                return _bad_hint("x-trimtab-session")
            exchange.session = session.decode()
        deadline = headers.get(b"x-trimtab-deadline-ms")
        if deadline is not None:
            if not _NUMBER.fullmatch(deadline) or not 0 < int(deadline) <= MAX_DEADLINE_MS:
                return _bad_hint("x-trimtab-deadline-ms")
            exchange.deadline_s = self.now_s() + int(deadline) / 1e3
        priority = headers.get(b"x-trimtab-priority")
        if priority is not None and tenant.may_set_priority:
            if not _NUMBER.fullmatch(priority) or abs(int(priority)) > MAX_PRIORITY:
                return _bad_hint("x-trimtab-priority")
            exchange.priority = int(priority)
        name = headers.get(b"x-trimtab-tenant")
        if name is not None and tenant.may_name_tenant:
            named = self.tenant_named(name.decode()) if _NAME.fullmatch(name) else None
            if named is None:
                return _bad_hint("x-trimtab-tenant")
            exchange.tenant = named
            exchange.background = named.background
        return None

    def body(self, exchange: ClientExchange) -> Refusal | None:
        """Check a request whose `body` is in memory: facts, model, limits. Returns a refusal, or None."""
        endpoint, body = exchange.endpoint, exchange.body
        assert endpoint is not None
        if exchange.is_local:
            return None
        if not body:
            if endpoint.replayable:
                return Refusal(400, "invalid_json", "The request has no body.")
            query = exchange.target.partition(b"?")[2].decode()
            facts = parse_query(endpoint, exchange.path, query)
        else:
            facts = parse_body(endpoint, exchange.request.content_type, body)
        return facts if isinstance(facts, Refusal) else self.route(exchange, facts)

    def scan(self, exchange: ClientExchange) -> BodyScan | Refusal:
        """The scanner of a body that is too long to be parsed as a whole."""
        endpoint = exchange.endpoint
        assert endpoint is not None
        return body_scan(endpoint, exchange.request.content_type)

    def scanned(self, exchange: ClientExchange, scan: BodyScan) -> Refusal | None:
        """Check a request after its body was scanned: facts, model, limits. Returns a refusal, or None."""
        facts = scan.finish()
        return facts if isinstance(facts, Refusal) else self.route(exchange, facts, scan)

    def route(self, exchange: ClientExchange, facts: Facts, scan: BodyScan | None = None) -> Refusal | None:
        """Resolve the requested model, and count the request against its tenant's limits."""
        found = self.meant(exchange, facts, scan)
        if isinstance(found, Refusal):
            return found
        endpoint, body = exchange.endpoint, exchange.body
        assert endpoint is not None
        facts = found
        if endpoint.kind is Kind.RESPONSE and (about := path_id(endpoint, exchange.path)):
            facts = replace(facts, previous_response_id=about)  # takes precedence over the body
        exchange.facts = facts
        if not exchange.session:
            exchange.session = facts.session
        exchange.replayable = endpoint.replayable and body is not None
        asks = facts.stream and not facts.wants_usage and endpoint.kind in _STREAMED_KINDS
        exchange.asks_usage = asks and self.count_usage and body is not None
        return self._admit(exchange, facts)

    def meant(self, exchange: ClientExchange, facts: Facts, scan: BodyScan | None = None) -> Facts | Refusal:
        """Follow the routes from the requested name to a model, and write the model's name into the body.

        `scan` has read the body if the body is too long for memory.
        """
        asked = facts.model
        if not asked or (asked not in self.routes and self.known(asked)):
            return facts
        model = self._model(exchange.id, asked)
        if isinstance(model, Refusal):
            return model
        exchange.route = asked
        if model == asked:
            return facts
        renamed = _rename(exchange, asked, model) if scan is None else _rename_spooled(exchange, scan, model)
        return renamed or replace(facts, model=model)

    def _admit(self, exchange: ClientExchange, facts: Facts) -> Refusal | None:
        tenant = exchange.tenant
        if tenant is None or tenant.limits is None:
            return None
        if tenant.rules is not None:
            barred: Refusal | None = tenant.rules.refusal(facts.model, exchange.route)
            if barred is not None:
                return barred
        limits: Limits = tenant.limits
        tokens = self.tokens(facts) if limits.counts_tokens else 0.0
        refusal = limits.admit(exchange.arrived_s, tokens)
        exchange.own_lines += limits.header_lines(exchange.arrived_s)
        if refusal is None:
            exchange.admitted = (limits, tokens)
        return refusal

    def _model(self, request_id: str, asked: str) -> str | Refusal:
        """Resolve a name that has a route or is unknown: follow aliases, canaries and the fallback."""
        route = self.routes.get(asked)
        if route is None:
            return _no_model(asked)
        k = _share(route, request_id)
        model = route.models[k]
        if route.fallbacks[k] and not self.ready(model):
            model = next(filter(self.ready, route.fallbacks[k]), route.fallbacks[k][0])
        return model if self.known(model) else _no_model(asked)


def _trace(headers: Headers) -> str:
    trace = headers.get(b"traceparent", b"")
    return trace.decode() if _TRACE.fullmatch(trace) else ""


def _share(route: Resolved, request_id: str) -> int:
    """Choose one of the route's models by share. The same id always gets the same model."""
    point = crc32(request_id.encode()) / 2**32
    for k, frac in enumerate(route.fracs):
        point -= frac
        if point < 0.0:
            return k
    return len(route.fracs) - 1


def _rename(exchange: ClientExchange, asked: str, model: str) -> Refusal | None:
    """Replace the alias in the body by the model's own name."""
    body = exchange.body
    if body == b"" and exchange.target.find(b"?") >= 0:
        return _rename_in_query(exchange, model)
    if body is None:
        message = f"The model `{asked[:200]}` is an alias, and the body that names it was not shown."
        return Refusal(400, "alias_without_body", message, param="model")
    content_type = exchange.request.content_type.lower()
    if content_type.startswith("multipart/"):
        renamed, n = re.subn(
            rb'(name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n)' + re.escape(asked.encode()) + rb"(?=\r\n)",
            lambda match: match[1] + model.encode(),
            body,
        )
        if n != 1:
            return Refusal(400, "bad_form", "The form's model is not understood.", param="model")
        exchange.body = renamed
        return None
    quoted = re.compile(rb'("model"\s*:\s*)' + re.escape(orjson.dumps(asked)) + rb"(?=\s*[,}])")
    renamed, n = quoted.subn(lambda match: match[1] + orjson.dumps(model), body)
    if n != 1:  # also in a nested object, or with escapes: serialise the body again
        renamed = orjson.dumps({**orjson.loads(body), "model": model})
    exchange.body = renamed
    return None


def _rename_spooled(exchange: ClientExchange, scan: BodyScan, model: str) -> Refusal | None:
    """`_rename` for a body in a file."""
    change = scan.renamed(model)
    if change is None:
        return Refusal(413, "alias_too_large", "A body of this type and size must name the model itself.")
    exchange.change_spooled(change)
    return None


def _rename_in_query(exchange: ClientExchange, model: str) -> Refusal | None:
    path, _, query = exchange.target.partition(b"?")
    pairs = [(name, model if name == "model" else value) for name, value in parse_qsl(query.decode())]
    exchange.target = path + b"?" + urlencode(pairs).encode()
    return None


def _no_model(model: str) -> Refusal:
    return Refusal(
        404,
        "model_not_found",
        f"The model `{model[:200]}` does not exist or you do not have access to it.",
        param="model",
    )


def _bad_hint(name: str) -> Refusal:
    return Refusal(400, "bad_header", f"The header {name} is not understood.")


def wants_async(prefer: bytes) -> bool:
    """Whether a Prefer header with one or several preferences requests a job instead of a response."""
    preferences = _PREFERENCE.findall(prefer)
    return any(one.partition(b";")[0].strip().lower() == b"respond-async" for one in preferences)
