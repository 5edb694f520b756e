"""OpenTelemetry spans, one per request and one per attempt. Needs the extra `otel`.

Spans are created when the request ends, with its recorded times, so that a running request costs nothing. A
client's `traceparent` is the parent, and its decision not to sample is respected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.errors import MissingExtra
from trimtab.gateway.model import Attempt, Exchange, Observer, Outcome
from trimtab.version import __version__

try:
    from opentelemetry import context, trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:  # pragma: no cover - the tests have it
    raise MissingExtra("spans need OpenTelemetry", expected="pip install 'trimtab[otel]'") from missing


_TRACES = "/v1/traces"  # path of a collector


class Spans(Observer):
    """An Observer that passes spans to a processor. `clock` is the event loop's; call `close` at the end."""

    def __init__(self, clock: Callable[[], float], processor: SpanProcessor) -> None:
        self._clock = clock
        resource = Resource.create({"service.name": "trimtab", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trimtab.gateway", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Create the spans of the requests and of their attempts."""
        for exchange in exchanges:
            self._spans(exchange)

    def _spans(self, exchange: Exchange) -> None:
        now_s, epoch_ns = self._clock(), time.time_ns()

        def wall_ns(at_s: float) -> int:
            return epoch_ns - int((now_s - (at_s or now_s)) * 1e9)

        carrier = {"traceparent": exchange.traceparent} if exchange.traceparent else {}
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.endpoint.path if exchange.endpoint is not None else 'unknown'}",
            context=self._propagator.extract(carrier, context=context.Context()),
            kind=SpanKind.SERVER,
            start_time=wall_ns(exchange.arrived_s),
            attributes=_attributes(exchange),
        )
        if exchange.outcome in (Outcome.FAILED, Outcome.EXPIRED):
            span.set_status(Status(StatusCode.ERROR, exchange.outcome.value))
        inside = trace.set_span_in_context(span, context.Context())
        for attempt in exchange.attempts:
            self._attempt(attempt, inside, wall_ns)
        span.end(epoch_ns)

    def _attempt(self, attempt: Attempt, inside: context.Context, wall_ns: Callable[[float], int]) -> None:
        span = self._tracer.start_span(
            f"attempt {attempt.node.name}",
            context=inside,
            kind=SpanKind.CLIENT,
            start_time=wall_ns(attempt.begun_s),
            attributes={
                "trimtab.node": attempt.node.name,
                "trimtab.hedge": attempt.hedge,
                "server.address": attempt.node.host,
                "server.port": attempt.node.port,
            },
        )
        if attempt.status:
            span.set_attribute("http.response.status_code", attempt.status)
        if attempt.first_byte_s > 0.0:
            span.add_event("first byte", timestamp=wall_ns(attempt.first_byte_s))
        if attempt.cause is not None:
            span.set_attribute("error.type", attempt.cause.value)
            span.set_status(Status(StatusCode.ERROR, attempt.cause.value))
        span.end(wall_ns(attempt.ended_s))

    def close(self) -> None:
        """Send the remaining spans, and stop."""
        self._provider.shutdown()


def otlp_spans(clock: Callable[[], float], endpoint: str) -> Spans:
    """Spans for the collector at `endpoint`, by OTLP over HTTP. A thread sends them and may delay the loop.

    As with OpenTelemetry's own OTEL_EXPORTER_OTLP_ENDPOINT, `/v1/traces` is appended if it is missing.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    url = endpoint.removesuffix("/").removesuffix(_TRACES) + _TRACES
    return Spans(clock, BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))


def _attributes(exchange: Exchange) -> dict[str, Any]:
    facts, usage, refusal = exchange.facts, exchange.usage, exchange.refusal
    found: dict[str, Any] = {
        "http.request.method": exchange.method,
        "url.path": exchange.path.partition("?")[0],
        "http.response.status_code": exchange.response_status if refusal is None else refusal.status,
        "trimtab.request_id": exchange.id,
        "trimtab.wait_s": max(0.0, exchange.started_s - exchange.arrived_s) if exchange.attempts else 0.0,
    }
    if exchange.endpoint is not None:
        found["gen_ai.operation.name"] = exchange.endpoint.kind.value
    if facts is not None:
        found["gen_ai.request.model"] = facts.model
    if exchange.tenant is not None:
        found["trimtab.tenant"] = exchange.tenant.name
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
    if refusal is not None:
        found["error.type"] = refusal.code
    return found
