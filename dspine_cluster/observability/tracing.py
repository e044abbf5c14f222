"""Traces of requests. Where they are not configured, spans are nothing and OpenTelemetry is not imported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dspine_cluster.config import TracingConfig
from dspine_cluster.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan

    from dspine_cluster.observability.otlp import OtlpTracer

Attributes = Mapping[str, str | int | float | Sequence[str]]


class Span:
    """A part of a trace that goes on, or nothing."""

    def __init__(self, recorded: OtelSpan | None = None) -> None:
        self._recorded = recorded

    @property
    def traceparent(self) -> str:
        """Names the span as W3C's header does, to whatever happens below it; empty where nothing is recorded."""
        if self._recorded is None:
            return ""
        from dspine_cluster.observability.otlp import traceparent_of

        return traceparent_of(self._recorded)

    def note(self, attributes: Attributes) -> None:
        """Tell more of it."""
        if self._recorded is not None:
            self._recorded.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        """It did not succeed; `kind` says why in a word. Messages of errors may quote the request: they stay here."""
        if self._recorded is not None:
            from opentelemetry.trace import Status, StatusCode

            self._recorded.set_attribute("error.type", kind)
            self._recorded.set_status(Status(StatusCode.ERROR, kind))

    def end(self, at_s: float | None = None) -> None:
        """It has ended, now or at a time of the monotonic clock."""
        if self._recorded is not None:
            self._recorded.end(None if at_s is None else _wall_ns(at_s))


NO_SPAN = Span()


class Tracing:
    """Where spans of one replica begin. Methods may be called from any thread."""

    def __init__(self, tracer: OtlpTracer | None = None, replica_id: str = "") -> None:
        """Without a tracer it is off."""
        self._tracer = tracer
        self.replica_id = replica_id

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def begin_trace(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> Span:
        """The span of a request that a client sent. It belongs to the client's trace where `headers` name one."""
        if self._tracer is None:
            return NO_SPAN
        from opentelemetry.trace import SpanKind

        return Span(self._tracer.start(name, SpanKind.SERVER, headers, None, attributes))

    def begin(
        self,
        name: str,
        traceparent: str,
        attributes: Attributes,
        *,
        is_call: bool = False,
        began_at_s: float | None = None,
    ) -> Span:
        """A span below the one that `traceparent` names; nothing if it is empty. It begins now or at a time of the
        monotonic clock. `is_call` says that another replica does the work."""
        if self._tracer is None or not traceparent:
            return NO_SPAN
        from opentelemetry.trace import SpanKind

        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        began_ns = None if began_at_s is None else _wall_ns(began_at_s)
        return Span(self._tracer.start(name, kind, {"traceparent": traceparent}, began_ns, attributes))

    @contextmanager
    def call(self, name: str, traceparent: str, attributes: Attributes) -> Iterator[Span]:
        """The span of what another replica does; it fails if the context is left by an error."""
        span = self.begin(name, traceparent, attributes, is_call=True)
        try:
            yield span
        except BaseException as error:
            span.fail(kind_of(error))
            raise
        finally:
            span.end()

    def figures(self) -> dict[str, float]:
        """By metric name."""
        return {} if self._tracer is None else self._tracer.figures()

    def close(self) -> None:
        """Export what waits, for a few seconds at most."""
        if self._tracer is not None:
            self._tracer.close()


NO_TRACING = Tracing()


def open_tracing(config: TracingConfig, replica_id: str = "") -> Tracing:
    """What `config` asks for; off without an endpoint.

    Raises:
        ConfigError: the packages that it takes are missing.
    """
    if config.endpoint is None:
        return NO_TRACING
    try:
        from dspine_cluster.observability.otlp import OtlpTracer

        tracer = OtlpTracer(config, {"service.instance.id": replica_id} if replica_id else {})
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing.endpoint needs the extra otlp: pip install 'dspine-cluster[otlp]' ({error})"
        ) from error
    return Tracing(tracer, replica_id)


def kind_of(error: BaseException) -> str:
    """Why something was cut off, in a word: the caller went away, or what the error is called."""
    is_left = isinstance(error, GeneratorExit | asyncio.CancelledError)
    return "aborted" if is_left else type(error).__name__.lstrip("_")


def _wall_ns(at_s: float) -> int:
    """Nanoseconds since 1970 of a time of the monotonic clock."""
    return time.time_ns() - round((time.monotonic() - at_s) * 1e9)
