"""`telemetry.otlp_endpoint`: a collector gets the spans of requests, the last when the gateway ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.backends import Options, launched
from support.served import chat, config_of, served

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(BaseHTTPRequestHandler):
    """Takes everything, and keeps paths and bodies."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def collecting() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Where a collector listens, and what it got."""
    got: list[tuple[str, bytes]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Collector,), {"got": got})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def test_spans_reach_the_collector_at_the_latest_when_the_gateway_ends(tmp_path: Path) -> None:
    trace_proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    traceparent = f"00-{TRACE}-b7ad6b7169203331-01"
    with collecting() as (endpoint, got), launched(Options(name="b0", output_s=0.001)) as backends:
        config = config_of(*backends, telemetry={"otlp_endpoint": endpoint})
        with served(tmp_path, config) as gateway:
            assert gateway.call("/v1/chat/completions", chat(), traceparent=traceparent).status == 200
    assert {path for path, _ in got} == {"/v1/traces"}
    sent = [trace_proto.ExportTraceServiceRequest.FromString(body) for _, body in got]
    scopes = [scope for each in sent for part in each.resource_spans for scope in part.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    of_it = {span.name for span in spans if span.trace_id.hex() == TRACE}
    assert of_it == {"POST /v1/chat/completions", "attempt b0"}
