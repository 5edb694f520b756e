"""The endpoint picker: Envoy's external processing as the endpoint-picker protocol asks.

For each request Envoy opens a stream of messages. The picker admits the request, lets the policy decide, and
answers with the nodes that may serve it, best first. Envoy sends the request there, tries the next node where
one does not connect, and tells which one served, and what it answered.

*Source*: kubernetes-sigs/gateway-api-inference-extension, docs/proposals/004-endpoint-picker-protocol, 1.0.0.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trimtab.gateway.api.errors import error_body, refusal_headers
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.model import (
    Cause,
    Dialect,
    Dispatcher,
    Exchange,
    Facts,
    Node,
    ObserverCalls,
    Outcome,
    Refusal,
)
from trimtab.gateway.nodes.address import with_port
from trimtab.gateway.nodes.fleet import Fleet, FleetListener
from trimtab.gateway.picker import answers
from trimtab.gateway.picker.answers import GO_ON, NAMESPACE
from trimtab.gateway.picker.ext_proc_messages import (
    BODY_BUFFERED,
    BODY_FULL_DUPLEX,
    BODY_NONE,
    ProcessingRequest,
)
from trimtab.gateway.picker.picked_exchange import PickedExchange, PickedHead
from trimtab.gateway.picker.picker_settings import PickerSettings
from trimtab.gateway.tenancy.admission import Admission, ClientExchange

logger = logging.getLogger(__name__)

SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
MODEL_HEADER: Final = b"x-gateway-model-name"  # from a body-based router before the picker
ATTRIBUTES: Final = "envoy.filters.http.ext_proc"
MOST_LOST: Final = 3  # nodes that could not load what a request needs
SLACK_S: Final = 1.0  # Envoy waits so much longer than a request may be held

_DRAINING: Final = Refusal(503, "draining", "This endpoint picker is about to end.", 1.0)
_NO_ENDPOINTS: Final = Refusal(503, "no_endpoint", "There are no endpoints.", 1.0)
_NO_SUBSET: Final = Refusal(503, "no_endpoint", "No endpoint of the requested subset can serve it.")


class NodeAddresses(FleetListener):
    """The nodes by `ip:port`, as the proxy names them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, Node] = {}
        for node in fleet.present():
            self.on_added(node)
        fleet.listeners.append(self)

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        self._nodes[endpoint_of(node)] = node
        if not is_address(node.host):
            self._fleet.report(f"endpoint {node.name}", f"{node.host} is a name: proxies are told addresses")

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._nodes.pop(endpoint_of(node), None)

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, endpoint: str) -> Node | None:
        """The node at an address."""
        return self._nodes.get(endpoint)


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def endpoint_of(node: Node) -> str:
    """A node's `ip:port`; IPv6 in brackets."""
    return with_port(node.host, node.port)


class Picker:
    """What all streams share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: PickerSettings,
        fleet: Fleet,
        admission: Admission,
        dispatcher: Dispatcher,
        calls: ObserverCalls,
        answer: Callable[[ClientExchange], LocalAnswer | Refusal],
    ) -> None:
        """`answer` answers requests that are about the gateway itself."""
        self.loop, self.settings, self.admission = loop, settings, admission
        self.dispatcher, self.calls, self.answer = dispatcher, calls, answer
        self.addresses, self.nodes = NodeAddresses(fleet), fleet.nodes
        self.open: set[PickedExchange] = set()
        self.buffered_bytes = 0
        self.refusing = False
        self.sees_responses = False  # Envoy has shown the head of a response
        self._is_blind = False  # it has not, and the log says so
        self._done: list[PickedExchange] = []
        self._ended: list[Exchange] = []

    async def process(self, _: object, context: Any) -> None:
        """Handle one stream; a method of gRPC, with messages as bytes."""
        stream = Stream(self, context.write)
        try:
            while not stream.is_over and isinstance(message := await context.read(), bytes):
                await stream.take(ProcessingRequest.FromString(message))
        finally:
            stream.close()

    def done(self, exchange: PickedExchange) -> None:
        """A node has served it. What follows is done for all of a turn of the loop together."""
        if not self._done:
            self.loop.call_soon(self._end_done)
        self._done.append(exchange)

    def _end_done(self) -> None:
        done, self._done = self._done, []
        try:
            self.dispatcher.done(done)
        finally:
            for exchange in done:
                exchange.finish(Outcome.DONE)

    def tell_blind(self) -> None:
        """Say once that nothing is learned from responses."""
        if not self._is_blind:
            self._is_blind = True
            logger.warning("the proxy shows no responses: response_header_mode: SEND lets loads be known")

    def tell_ended(self, exchange: PickedExchange) -> None:
        """Report an ended exchange to the observers, with all of the turn."""
        self.open.discard(exchange)
        if not self._ended:
            self.loop.call_soon(self._tell_ended)
        self._ended.append(exchange)

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for tell in self.calls.ended:
            tell(ended)


class Stream:
    """The messages about one request and its response, in their order."""

    def __init__(self, picker: Picker, write: Callable[[bytes], Any]) -> None:
        self._picker, self._write = picker, write
        self._exchange: PickedExchange | None = None
        self._body_mode = self._response_mode = BODY_NONE
        self._pieces: list[bytes] = []  # of the body, until it is whole
        self._n_bytes = 0
        self._ranking: Sequence[Node] = ()  # as Envoy was told
        self.is_over = False  # nothing more is to be said

    async def take(self, message: Any) -> None:
        """Take the next message, and answer it."""
        part = message.WhichOneof("one")
        if part == "request_headers":
            await self._request_head(message)
        elif part == "request_body":
            await self._request_body(message.request_body)
        elif part == "response_headers":
            await self._response_head(message)
        elif part == "response_body":
            await self._response_body(message.response_body)
        elif part == "request_trailers":
            await self._request_trailers()
        elif part == "response_trailers":
            self._end_response()
            await self._write(GO_ON[part])

    # The request

    async def _request_head(self, message: Any) -> None:
        picker, head = self._picker, message.request_headers
        if message.HasField("protocol_config"):
            self._body_mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        exchange = self._exchange = PickedExchange(picker, PickedHead(head))
        picker.open.add(exchange)
        refusal = picker.admission.head(exchange)
        if refusal is None and picker.refusing:
            refusal = _DRAINING
        if refusal is None:
            refusal = self._take_subset(exchange, message)
        if refusal is not None:
            await self._refuse(exchange, refusal)
        elif exchange.is_local:
            await self._answer(exchange, picker.answer(exchange))
        elif head.end_of_stream:
            exchange.body = b""
            await self._decide("request_headers", picker.admission.body(exchange))
        elif self._body_mode not in (BODY_BUFFERED, BODY_FULL_DUPLEX) or exchange.request.websocket:
            self._body_mode = BODY_NONE
            model = exchange.request.headers.get(MODEL_HEADER, b"").decode("latin-1")
            await self._decide("request_headers", picker.admission.route(exchange, Facts(model)))
        elif self._body_mode == BODY_BUFFERED:
            await self._write(GO_ON["request_headers"])

    def _take_subset(self, exchange: PickedExchange, message: Any) -> Refusal | None:
        """Read the endpoints that the proxy allows; a refusal where there are none of ours."""
        allowed = message.metadata_context.filter_metadata
        if SUBSET_NAMESPACE not in allowed or SUBSET not in allowed[SUBSET_NAMESPACE].fields:
            return None
        value = allowed[SUBSET_NAMESPACE].fields[SUBSET]
        named = (
            [one.string_value for one in value.list_value.values]
            if value.HasField("list_value")
            else value.string_value.split(",")
        )
        found = (self._picker.addresses.find(name.strip()) for name in named)
        exchange.subset = frozenset(node.idx for node in found if node is not None)
        return None if exchange.subset else _NO_SUBSET

    async def _request_body(self, piece: Any) -> None:
        exchange, picker = self._exchange, self._picker
        if exchange is None:
            return
        if self._body_mode == BODY_NONE:  # the decision has not waited for it
            await self._write(GO_ON["request_body"])
            return
        self._pieces.append(piece.body)
        self._n_bytes += len(piece.body)
        picker.buffered_bytes += len(piece.body)
        if self._n_bytes > picker.settings.body_bytes:
            await self._refuse(exchange, Refusal(413, "body_too_large", "The body is too large."))
        elif picker.buffered_bytes > picker.settings.buffered_bytes:
            message = "Too many bytes of requests are waiting."
            await self._refuse(exchange, Refusal(503, "too_much_buffered", message, 1.0))
        elif piece.end_of_stream or self._body_mode == BODY_BUFFERED:
            await self._whole(exchange, ends=piece.end_of_stream)

    async def _request_trailers(self) -> None:
        exchange = self._exchange
        if exchange is not None and self._body_mode == BODY_FULL_DUPLEX and exchange.body is None:
            await self._whole(exchange, ends=False)
        if not self.is_over:
            await self._write(GO_ON["request_trailers"])

    async def _whole(self, exchange: PickedExchange, *, ends: bool) -> None:
        """The request is whole. `ends`: no trailers follow."""
        exchange.body = body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        part = "request_body" if self._body_mode == BODY_BUFFERED else "request_headers"
        await self._decide(part, self._picker.admission.body(exchange), shown=body, ends=ends)

    async def _decide(
        self, part: str, refusal: Refusal | None, shown: bytes | None = None, ends: bool = True
    ) -> None:
        """Let the policy choose, and say what it chose. `shown`: the body, as the client sent it."""
        exchange, picker = self._exchange, self._picker
        assert exchange is not None
        if not picker.addresses:
            refusal = _NO_ENDPOINTS  # whatever it asks for
        if refusal is not None:
            await self._refuse(exchange, refusal)
            return
        exchange.submit()
        if exchange.is_waiting and self._body_mode != BODY_FULL_DUPLEX:  # there Envoy waits without limit
            await self._write(answers.longer(picker.settings.held_s + SLACK_S))
        await exchange.decided()
        while exchange.refusal is None and not await _is_loaded(exchange):
            if len(exchange.attempts) >= MOST_LOST:
                picker.dispatcher.failed(exchange, Cause.LOAD)
                exchange.refusal = Refusal(503, "load_failed", "The node could not load the model.")
                break
            exchange.lost(Cause.LOAD)
            await exchange.decided()
        if exchange.refusal is not None:
            await self._refuse(exchange, exchange.refusal)
            return
        await self._say(exchange, part, shown, ends)

    async def _say(self, exchange: PickedExchange, part: str, shown: bytes | None, ends: bool) -> None:
        node = exchange.attempts[-1].node
        self._ranking = self._ranked(exchange, node)
        endpoints = ",".join(map(endpoint_of, self._ranking))
        head = exchange.request
        headers: tuple[answers.Header, ...] = ()
        removed = head.removed
        if node.authorization:
            headers = (("authorization", node.authorization),)
            removed = tuple(name for name in removed if name != "authorization")
        if exchange.target != head.target:
            headers += ((":path", exchange.target),)
        if shown is not None and exchange.body != shown and part == "request_body":
            assert exchange.body is not None
            await self._write(answers.chosen_with_body(endpoints, headers, removed, exchange.body))
        else:
            await self._write(answers.chosen(part, endpoints, headers, removed))
        if self._body_mode == BODY_FULL_DUPLEX and shown is not None:
            for piece in answers.body_pieces("request_body", exchange.body or b"", ends=ends):
                await self._write(piece)
        exchange.attempts[-1].sent_s = self._picker.loop.time()

    def _ranked(self, exchange: PickedExchange, chosen: Node) -> list[Node]:
        """The chosen node and those after it in the policy's ranking, else others that can serve the request.

        Only nodes with the same key, which the request carries, may stand for each other.
        """
        most, nodes = self._picker.settings.max_endpoints, self._picker.nodes
        if most == 1:
            return [chosen]
        subset, key = exchange.subset, chosen.authorization

        def ranked(candidates: Iterable[Node]) -> list[Node]:
            able = [
                one
                for one in candidates
                if one.authorization == key and (subset is None or one.idx in subset)
            ]
            return list(dict.fromkeys((chosen, *able)))[:most]

        ranking = ranked([nodes[j] for j in exchange.decision.node_idx])
        return ranking if len(ranking) > 1 else ranked(self._picker.dispatcher.able(exchange))

    # The response

    async def _response_head(self, message: Any) -> None:
        exchange, picker = self._exchange, self._picker
        picker.sees_responses = True
        head = message.response_headers
        if exchange is None or not exchange.attempts or not self._ranking:
            await self._write(GO_ON["response_headers"])  # Envoy's own answer, before any decision
            return
        status, content_type, coding = 0, b"", b""
        for header in head.headers.headers:
            name = header.key
            if name == ":status":
                status = int(header.raw_value or header.value)
            elif name == "content-type":
                content_type = header.raw_value or header.value.encode()
            elif name == "content-encoding":
                coding = (header.raw_value or header.value.encode()).strip().lower()
        served, details = _served(message)
        node = picker.addresses.find(served) if served else None
        if node is not None:
            exchange.served_by(node, self._ranking)
        exchange.answered(status, content_type, coding, _failure(details))
        headers = [("x-trimtab-node", exchange.attempts[-1].node.name.encode())]
        headers += _lines(exchange.own_lines)
        if head.end_of_stream or self._response_mode == BODY_NONE:
            self._end_response()  # first: with the last answer Envoy closes the stream
        await self._write(answers.response_head(headers))

    async def _response_body(self, piece: Any) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.committed:
            exchange.piece(piece.body)
            if piece.end_of_stream:
                self._end_response()
        if self._response_mode == BODY_FULL_DUPLEX:
            for answer in answers.body_pieces("response_body", piece.body, ends=piece.end_of_stream):
                await self._write(answer)
        else:
            await self._write(GO_ON["response_body"])

    def _end_response(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.committed and not exchange.over:
            exchange.ended()

    # The end

    async def _refuse(self, exchange: PickedExchange, refusal: Refusal) -> None:
        exchange.refusal, exchange.response_status = refusal, refusal.status
        dialect = exchange.endpoint.dialect if exchange.endpoint is not None else Dialect.OPENAI
        headers = [(n, v.encode()) for n, v in refusal_headers(refusal, dialect, exchange.id)]
        body = error_body(refusal, dialect, exchange.id)
        await self._immediate(exchange, refusal.status, headers, body, refusal.code)
        if refusal.is_late:
            exchange.finish(Outcome.EXPIRED)
        else:
            exchange.finish(Outcome.FAILED if exchange.attempts else Outcome.REFUSED)

    async def _answer(self, exchange: PickedExchange, answer: LocalAnswer | Refusal) -> None:
        """Answer for the gateway itself."""
        if isinstance(answer, Refusal):
            await self._refuse(exchange, answer)
            return
        assert isinstance(answer.body, bytes)
        exchange.response_status, exchange.response_bytes = answer.status, len(answer.body)
        headers = [(name, value.encode()) for name, value in answer.headers]
        await self._immediate(exchange, answer.status, headers, answer.body, "answered")
        exchange.finish(Outcome.DONE)

    async def _immediate(
        self, exchange: PickedExchange, status: int, headers: list[answers.Header], body: bytes, details: str
    ) -> None:
        self.is_over = True
        headers += _lines(exchange.own_lines)
        await self._write(answers.immediate(status, headers, body, details))

    def close(self) -> None:
        """Envoy has ended the stream, or it broke."""
        exchange, picker = self._exchange, self._picker
        picker.buffered_bytes -= self._n_bytes
        if exchange is None or exchange.over:
            return
        if self._ranking and not picker.sees_responses:  # Envoy shows no responses: this is all there is
            picker.tell_blind()
            exchange.gone(Outcome.DONE)
        else:
            exchange.gone(Outcome.CANCELLED)


async def _is_loaded(exchange: PickedExchange) -> bool:
    """Let the chosen node load what the request needs; returns whether it has it."""
    attempt, facts = exchange.attempts[-1], exchange.facts
    loader = attempt.node.loader
    missing = loader.missing(attempt.node, facts.model) if loader is not None and facts is not None else None
    return not missing or bool(await loader.bring(attempt.node, missing))


def _served(message: Any) -> tuple[str, str]:
    """The endpoint that Envoy used last, and its details of the response; "" = it does not say."""
    served = details = ""
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE in metadata and SERVED in metadata[NAMESPACE].fields:
        served = metadata[NAMESPACE].fields[SERVED].string_value
    if ATTRIBUTES in message.attributes:
        fields = message.attributes[ATTRIBUTES].fields
        if "response.code_details" in fields:
            details = fields["response.code_details"].string_value
        if not served and "upstream.address" in fields:
            served = fields["upstream.address"].string_value
    return served, details


def _failure(details: str) -> Cause | None:
    """Why Envoy answers itself, by its details of the response; None = a node has answered."""
    if not details or details == "via_upstream":
        return None
    if "timeout" in details:
        return Cause.FIRST_BYTE
    return Cause.CONNECT if "connect" in details or "no_healthy" in details else Cause.RESET


def _lines(lines: bytes) -> list[answers.Header]:
    """Header lines, each with CRLF, as pairs."""
    pairs = (line.partition(b": ") for line in lines.split(b"\r\n") if line)
    return [(name.decode(), value) for name, _, value in pairs]
