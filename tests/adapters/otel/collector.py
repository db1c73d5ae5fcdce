"""Collectors for tests: one of our own that can be slow or answer 500, and the real sink of oteltest."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WAIT = 30.0


def attributes(message: Any) -> dict[str, Any]:
    return {one.key: value(one.value) for one in message.attributes}


def value(one: AnyValue) -> Any:
    kind = one.WhichOneof("value")
    if kind == "array_value":
        return [value(inner) for inner in one.array_value.values]
    return getattr(one, kind) if kind else None


@dataclass
class Received:
    """What came in, decoded by the official classes."""

    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    logs: list[ExportLogsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    status: int = 200
    rejected: int = 0
    says: str = ""
    """Why it rejected spans."""
    requests: int = 0
    gate: threading.Event | None = None
    """An answer waits for it."""

    # As oteltest calls a listener.
    def handle_trace(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        self.traces.append(request)
        self.headers.append({name.lower(): one for name, one in headers.items()})

    def handle_metrics(self, request: ExportMetricsServiceRequest, _: dict[str, str]) -> None:
        self.metrics.append(request)

    def handle_logs(self, request: ExportLogsServiceRequest, _: dict[str, str]) -> None:
        self.logs.append(request)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for block in request.resource_spans
            for scope in block.scope_spans
            for span in scope.spans
        ]

    @property
    def bytes(self) -> bytes:
        """All that was received."""
        requests: list[Any] = [*self.traces, *self.metrics, *self.logs]
        return b"".join(one.SerializeToString() for one in requests)

    @property
    def names(self) -> Counter[str]:
        return Counter(span.name for span in self.spans)

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.traces[0].resource_spans[0].resource)

    @property
    def log_records(self) -> list[Any]:
        return [
            record
            for request in self.logs
            for block in request.resource_logs
            for scope in block.scope_logs
            for record in scope.log_records
        ]

    @property
    def last_metrics(self) -> dict[str, Any]:
        block = self.metrics[-1].resource_metrics[0]
        return {one.name: one for one in block.scope_metrics[0].metrics}

    def require_one_tree(self) -> Any:
        """One trace, no id twice, every parent is there; returns the root."""
        spans = self.spans
        ids = Counter(span.span_id for span in spans)
        assert [one for one, count in ids.items() if count > 1] == []
        assert len({span.trace_id for span in spans}) == 1
        (root,) = [span for span in spans if not span.parent_span_id]
        assert [
            span.name for span in spans if span.parent_span_id and span.parent_span_id not in ids
        ] == []
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
        return root


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def collector(
    *, status: int = 200, rejected: int = 0, says: str = "", gate: threading.Event | None = None
) -> Iterator[Received]:
    received = Received(status=status, rejected=rejected, says=says, gate=gate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            received.requests += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if received.gate is not None:
                received.gate.wait(WAIT)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = b""
            if received.status == 200:
                headers = dict(self.headers.items())
                match self.path.rpartition("/")[2]:
                    case "traces":
                        received.handle_trace(ExportTraceServiceRequest.FromString(body), headers)
                        partial = ExportTracePartialSuccess(
                            rejected_spans=received.rejected, error_message=received.says
                        )
                        answer = ExportTraceServiceResponse(
                            partial_success=partial
                        ).SerializeToString()
                    case "metrics":
                        received.handle_metrics(
                            ExportMetricsServiceRequest.FromString(body), headers
                        )
                    case "logs":
                        received.handle_logs(ExportLogsServiceRequest.FromString(body), headers)
            self.send_response(received.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        if gate is not None:
            gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def real_sink() -> Iterator[Received]:
    """The HTTP sink of oteltest, which `otelsink --http` starts."""
    from oteltest.sink import HttpSink  # type: ignore[import-untyped]

    received, port = Received(), free_port()
    sink = HttpSink(received, logging.getLogger("sink"), port=port)
    sink.start()
    for _ in range(1000):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                break
        threading.Event().wait(0.01)
    received.url = f"http://127.0.0.1:{port}"
    try:
        yield received
    finally:
        sink.stop()
