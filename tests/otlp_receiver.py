"""A receiver of traces in this process: it decodes what OTLP exporters post, and can refuse it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it came."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty where it begins a trace."""
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    has_failed: bool
    resource: dict[str, Any]


@dataclass
class Receiver:
    """What has come. `status` is what it answers."""

    endpoint: str = ""
    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        """In the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_ns)

    def only(self, name: str) -> ReceivedSpan:
        [span] = self.named(name)
        return span

    def take(self, body: bytes) -> None:
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [_received(span, resource) for span in scope_spans.spans]

    def wait_for(self, num_spans: int, timeout_s: float = 60.0) -> None:
        """For what another thread or process exports."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.spans) < num_spans:
            assert time.monotonic() < deadline_s, f"only {len(self.spans)} spans have come"
            time.sleep(0.01)


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    """A receiver that listens on a port of its own."""
    receiver = Receiver(status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.append(self.path)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            if receiver.status == 200:
                receiver.take(body)
            self.send_response(receiver.status)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _received(span: SpanMessage, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        has_failed=span.status.code == Status.STATUS_CODE_ERROR,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
