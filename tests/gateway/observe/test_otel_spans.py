"""Spans have the request's times, its parent and its attempts."""

from __future__ import annotations

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from support.gateway.observe_builders import make_exchange, make_node
from trimtab.gateway.model import Attempt, Cause, Exchange, Outcome, Usage
from trimtab.gateway.observe.otel import Spans, otlp_spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(exchange: Exchange) -> list[object]:
    exporter = InMemorySpanExporter()
    spans = Spans(lambda: 102.5, SimpleSpanProcessor(exporter))
    spans.ended([exchange])
    spans.close()
    return list(exporter.get_finished_spans())


def test_a_request_and_its_attempts() -> None:
    exchange = make_exchange(traceparent=f"00-{TRACE}-{PARENT}-01", usage=Usage(3, 4))
    exchange.attempts.insert(0, Attempt(make_node("b"), 100.2, ended_s=100.4, cause=Cause.RESET))
    lost, won, root = spans_of(exchange)
    assert root.name == "POST /v1/chat/completions"
    assert format(root.context.trace_id, "032x") == TRACE
    assert format(root.parent.span_id, "016x") == PARENT
    assert lost.parent.span_id == won.parent.span_id == root.context.span_id
    assert (root.end_time - root.start_time) / 1e9 == pytest.approx(2.5)
    assert (won.end_time - won.start_time) / 1e9 == pytest.approx(2.0)
    assert (won.start_time - root.start_time) / 1e9 == pytest.approx(0.5)
    assert root.attributes["gen_ai.request.model"] == "llama"
    assert root.attributes["gen_ai.usage.output_tokens"] == 4
    assert lost.attributes["error.type"] == "reset"
    assert lost.status.status_code is StatusCode.ERROR
    assert won.events[0].name == "first byte"


def test_a_client_that_does_not_sample_is_heeded() -> None:
    assert spans_of(make_exchange(traceparent=f"00-{TRACE}-{PARENT}-00")) == []


@pytest.mark.parametrize("traceparent", ["", "garbage", f"00-{'0' * 32}-{PARENT}-01"])
def test_without_a_parent_a_trace_begins(traceparent: str) -> None:
    *_, root = spans_of(make_exchange(traceparent=traceparent, outcome=Outcome.FAILED))
    assert root.parent is None
    assert root.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("given", ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"])
def test_the_collectors_path_may_be_left_out(given: str) -> None:
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trace_exporter,
            "OTLPSpanExporter",
            lambda endpoint: asked.append(endpoint) or InMemorySpanExporter(),
        )
        otlp_spans(lambda: 0.0, given).close()
    assert asked == ["http://c:4318/v1/traces"]
