"""A tracer whose spans a thread of its own sends to an OTLP receiver. Only this module needs the extra `otlp`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dspine_cluster.config import TracingConfig
from dspine_cluster.observability.series import series
from dspine_cluster.observability.tracing import Attributes

_HTTP_PATH = "/v1/traces"
_BATCH_SPANS = 512
_BATCH_PERIOD_S = 1.0
_CLOSING_S = 2.0
"""At the end no export begins later."""

_context_of = TraceContextTextMapPropagator()


class OtlpTracer:
    """It is not the process's global one: nobody else's spans go through it."""

    def __init__(self, config: TracingConfig, resource: Mapping[str, str]) -> None:
        """`resource` tells whose spans these are."""
        self._exporter = _CountingExporter(_exporter(config), config.max_queued_spans)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample_fraction)),
            resource=Resource.create({"service.name": config.service_name, **resource}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_BoundedProcessor(self._exporter, config.max_queued_spans))
        self._tracer = self._provider.get_tracer("dspine_cluster")

    def start(
        self,
        name: str,
        kind: SpanKind,
        carrier: Mapping[str, str],
        started_ns: int | None,
        attributes: Attributes,
    ) -> Span:
        """A span below the one that `carrier` names as W3C's headers do; a trace begins with it if there is none."""
        return self._tracer.start_span(
            name, _context_of.extract(carrier), kind, attributes, start_time=started_ns
        )

    def figures(self) -> dict[str, float]:
        """Spans by what became of them, by metric name."""
        return {
            series("trace_spans_total", {"outcome": outcome}): count
            for outcome, count in self._exporter.counts.items()
        }

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        self._exporter.give_up_at(time.monotonic() + _CLOSING_S)
        self._provider.shutdown()


def traceparent_of(span: Span) -> str:
    """W3C's header for what happens below a span; empty where the span is not recorded."""
    carrier: dict[str, str] = {}
    if span.is_recording():
        _context_of.inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent", "")


class _CountingExporter(SpanExporter):
    """Counts what becomes of spans, from where they end."""

    def __init__(self, exporter: SpanExporter, max_waiting: int) -> None:
        self._exporter = exporter
        self._max_waiting = max_waiting
        self._give_up_at_s: float | None = None
        self._lock = threading.Lock()
        self._num_waiting = 0
        self.counts = {"exported": 0, "failed": 0, "dropped": 0}

    def takes_one_more(self) -> bool:
        """Whether there is room for a span that has ended; it waits from now on, or is dropped."""
        with self._lock:
            has_room = self._num_waiting < self._max_waiting
            self._num_waiting += has_room
            self.counts["dropped"] += not has_room
        return has_room

    def give_up_at(self, at_s: float) -> None:
        """Begin no export later, by the monotonic clock."""
        self._give_up_at_s = at_s

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            self._num_waiting -= len(spans)
        result = SpanExportResult.FAILURE
        try:
            if self._give_up_at_s is None or time.monotonic() < self._give_up_at_s:
                result = self._exporter.export(spans)
        finally:
            with self._lock:
                self.counts["exported" if result is SpanExportResult.SUCCESS else "failed"] += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _BoundedProcessor(SpanProcessor):
    """Spans wait here until a batch is sent; those for which there is no room are let go."""

    def __init__(self, exporter: _CountingExporter, max_waiting: int) -> None:
        self._exporter = exporter
        self._batches = BatchSpanProcessor(
            exporter,
            max_queue_size=max_waiting,
            schedule_delay_millis=1000.0 * _BATCH_PERIOD_S,
            max_export_batch_size=min(_BATCH_SPANS, max_waiting),
        )

    def on_end(self, span: ReadableSpan) -> None:
        if self._exporter.takes_one_more():
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._batches.force_flush(timeout_millis)


def _exporter(config: TracingConfig) -> SpanExporter:
    assert config.endpoint is not None
    if config.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(config.endpoint, headers=config.headers, timeout=config.export_timeout_s)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    address = urlsplit(config.endpoint)
    if address.path in ("", "/"):
        address = address._replace(path=_HTTP_PATH)
    return HttpExporter(address.geturl(), headers=config.headers, timeout=config.export_timeout_s)
