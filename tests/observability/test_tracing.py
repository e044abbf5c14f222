from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from dspine_cluster.config import TracingConfig
from dspine_cluster.errors import ConfigError, OverloadedError
from dspine_cluster.observability.tracing import NO_TRACING, kind_of, open_tracing
from tests.otlp_receiver import receiving

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = TRACEPARENT.removesuffix("01") + "00"


def test_off_nothing_is_recorded_nor_imported() -> None:
    program = (
        "import sys\n"
        "from dspine_cluster.config import TracingConfig\n"
        "from dspine_cluster.observability.tracing import open_tracing\n"
        "tracing = open_tracing(TracingConfig())\n"
        f"span = tracing.begin_trace('POST /', {{'traceparent': {TRACEPARENT!r}}}, {{}})\n"
        f"child = tracing.begin('queue', {TRACEPARENT!r}, {{}})\n"
        "span.note({'a': 1}); span.fail('aborted'); span.end(); tracing.close()\n"
        "print(tracing.is_on, repr(span.traceparent), repr(child.traceparent), tracing.figures())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False '' '' {}", "[]"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    for kind in ("http", "grpc"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter", None)
    config = TracingConfig(endpoint="http://127.0.0.1:1", protocol=protocol)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"extra otlp: pip install 'dspine-cluster\[otlp\]'"):
        open_tracing(config)


def test_a_trace_begins_where_the_client_names_none_and_goes_on_where_it_does() -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        tracing.begin_trace("new", {}, {}).end()
        tracing.begin_trace("more", {"traceparent": TRACEPARENT, "tracestate": "v=1"}, {}).end()
        tracing.close()
    assert receiver.only("new").parent_id == ""
    assert receiver.only("more").trace_id == "a" * 32
    assert receiver.only("more").parent_id == "b" * 16
    assert {span.kind for span in receiver.spans} == {"server"}


def test_a_span_s_name_makes_others_its_children_in_another_process() -> None:
    with receiving() as receiver:
        ingress = open_tracing(TracingConfig(endpoint=receiver.endpoint), "ingress")
        verifier = open_tracing(TracingConfig(endpoint=receiver.endpoint), "verifier")
        span = ingress.begin_trace("request", {}, {})
        verifier.begin("queue", span.traceparent, {"n": 1}).end()
        span.end()
        ingress.close()
        verifier.close()
    request, queue = receiver.only("request"), receiver.only("queue")
    assert (queue.trace_id, queue.parent_id) == (request.trace_id, request.span_id)
    assert (queue.kind, queue.attributes) == ("internal", {"n": 1})
    assert queue.resource["service.instance.id"] == "verifier"


def test_a_client_decides_whether_its_trace_is_recorded() -> None:
    with receiving() as receiver:
        never = open_tracing(TracingConfig(endpoint=receiver.endpoint, sample_fraction=0.0))
        always = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        unsampled = always.begin_trace("no", {"traceparent": UNSAMPLED}, {})
        assert unsampled.traceparent == never.begin_trace("no", {}, {}).traceparent == ""
        sampled = never.begin_trace("yes", {"traceparent": TRACEPARENT}, {})
        for span in (unsampled, sampled):
            span.end()
        never.close()
        always.close()
    assert [span.name for span in receiver.spans] == ["yes"]


def test_about_the_wanted_share_of_the_requests_is_traced() -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint, sample_fraction=0.25))
        names = [tracing.begin_trace("r", {}, {}).traceparent for _ in range(4000)]
        tracing.close()
    assert 800 < sum(bool(name) for name in names) < 1200


def test_nothing_lies_below_what_is_not_traced() -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        tracing.begin("queue", "", {}).end()
        tracing.close()
    assert receiver.spans == []


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_a_header_that_is_none_begins_a_trace(header: str) -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        tracing.begin_trace("request", {"traceparent": header}, {}).end()
        tracing.close()
    assert receiver.only("request").parent_id == ""


def test_spans_have_the_times_that_they_are_given() -> None:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        now_s, now_ns = time.monotonic(), time.time_ns()
        tracing.begin("prefill", TRACEPARENT, {}, began_at_s=now_s - 3.0).end(now_s - 1.0)
        tracing.close()
    span = receiver.only("prefill")
    # The wall clock may be set, or the machine be slow, between two looks at it.
    assert abs((span.ended_ns - span.began_ns) / 1e9 - 2.0) < 0.5
    assert abs((now_ns - span.began_ns) / 1e9 - 3.0) < 0.5


def test_a_call_that_an_error_ends_has_failed_with_its_name_alone() -> None:
    def fail() -> None:
        with tracing.call("generate", TRACEPARENT, {}):
            raise OverloadedError("the prompt was: secret")

    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        with pytest.raises(OverloadedError):
            fail()
        with tracing.call("generate", TRACEPARENT, {"ok": 1}):
            pass
        tracing.close()
    failed, good = sorted(receiver.spans, key=lambda span: span.began_ns)
    assert (failed.has_failed, failed.attributes) == (True, {"error.type": "OverloadedError"})
    assert (good.has_failed, good.attributes) == (False, {"ok": 1})
    assert failed.kind == good.kind == "client"


def test_whoever_leaves_has_aborted() -> None:
    assert kind_of(GeneratorExit()) == kind_of(asyncio.CancelledError()) == "aborted"
    assert kind_of(ValueError()) == "ValueError"


def test_off_it_counts_nothing() -> None:
    assert NO_TRACING.figures() == {}
