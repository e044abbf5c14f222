from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from dspine_cluster.config import TracingConfig
from dspine_cluster.observability import otlp
from dspine_cluster.observability.catalogue import METRIC_OF_FIGURE
from dspine_cluster.observability.series import parse_series
from dspine_cluster.observability.tracing import Tracing, open_tracing
from tests.otlp_receiver import Receiver, receiving

GRPC_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def counts(tracing: Tracing) -> tuple[float, float, float]:
    """Exported, failed and dropped."""
    figures = tracing.figures()
    assert {parse_series(figure)[0] for figure in figures} <= set(METRIC_OF_FIGURE)
    outcomes = ("exported", "failed", "dropped")
    exported, failed, dropped = (figures[f"trace_spans_total{{outcome={name}}}"] for name in outcomes)
    return exported, failed, dropped


def record(tracing: Tracing, number: int) -> None:
    for index in range(number):
        tracing.begin_trace(f"span {index}", {}, {}).end()


@pytest.mark.parametrize(
    ("address", "path"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp/v1/traces", "/otlp/v1/traces")]
)
def test_an_address_without_a_path_gets_the_usual_one(address: str, path: str) -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint + address))
        record(tracing, 1)
        tracing.close()
    assert receiver.paths == [path]


def test_headers_and_the_service_s_name_are_sent() -> None:
    with receiving() as receiver:
        config = TracingConfig(
            endpoint=receiver.endpoint, headers={"Authorization": "Bearer k"}, service_name="mine"
        )
        tracing = open_tracing(config, "replica")
        record(tracing, 1)
        tracing.close()
    assert receiver.headers[0]["authorization"] == "Bearer k"
    assert receiver.spans[0].resource["service.name"] == "mine"
    assert receiver.spans[0].resource["service.instance.id"] == "replica"


def test_spans_are_sent_without_being_asked_for() -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        record(tracing, 3)
        receiver.wait_for(3)
        tracing.close()
    assert counts(tracing) == (3, 0, 0)


def test_spans_that_the_receiver_refuses_are_counted() -> None:
    with receiving(status=400) as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        record(tracing, 5)
        tracing.close()
    assert counts(tracing) == (0, 5, 0)


def test_a_receiver_that_is_away_costs_the_spans_and_nothing_else() -> None:
    with receiving() as receiver:
        endpoint = receiver.endpoint
    tracing = open_tracing(TracingConfig(endpoint=endpoint, export_timeout_s=0.2))
    record(tracing, 4)
    tracing.close()
    assert counts(tracing) == (0, 4, 0)


class StuckExporter(SpanExporter):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        self.is_asked.set()
        assert self.may_go.wait(60)
        return SpanExportResult.SUCCESS


def test_what_waits_for_a_stuck_receiver_is_bounded_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = StuckExporter()
    monkeypatch.setattr(otlp, "_exporter", lambda _config: exporter)
    tracing = open_tracing(TracingConfig(endpoint="http://127.0.0.1:1", max_queued_spans=10))
    record(tracing, 10)  # as many as a batch takes: it is sent at once
    assert exporter.is_asked.wait(60)
    record(tracing, 25)  # returns although nothing moves
    assert counts(tracing) == (0, 0, 15)
    exporter.may_go.set()
    tracing.close()
    assert counts(tracing) == (20, 0, 15)


def test_nothing_is_waited_for_any_more_once_closing_has_taken_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "_CLOSING_S", -1.0)
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        record(tracing, 3)
        tracing.close()
    assert receiver.spans == []
    assert counts(tracing) == (0, 3, 0)


def test_spans_go_over_grpc_where_that_is_asked_for() -> None:
    receiver = Receiver()

    def export(request: bytes, context: Any) -> bytes:
        del context
        receiver.take(request)
        return bytes(ExportTraceServiceResponse().SerializeToString())

    server = grpc.server(ThreadPoolExecutor(1))
    method = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_SERVICE, method),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        tracing = open_tracing(TracingConfig(endpoint=f"http://127.0.0.1:{port}", protocol="grpc"))
        record(tracing, 2)
        tracing.close()
    finally:
        server.stop(None).wait()
    assert [span.name for span in receiver.spans] == ["span 0", "span 1"]
    assert counts(tracing) == (2, 0, 0)
