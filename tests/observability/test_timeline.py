from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from dspine_cluster.config import TracingConfig
from dspine_cluster.core.resume import COLD_START
from dspine_cluster.core.session import Session
from dspine_cluster.errors import EngineStoppedError
from dspine_cluster.observability.timeline import PhaseTrace, Timeline, traced_phases
from dspine_cluster.observability.tracing import NO_TRACING, open_tracing
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions
from tests.otlp_receiver import Receiver, receiving

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
REQUEST = GenerateRequest(
    "r", (1, 2, 3), SamplingParams(), StopConditions(max_tokens=9), traceparent=TRACEPARENT
)


class Request:
    """What a loop does with one request."""

    def __init__(self, trace: PhaseTrace) -> None:
        assert trace.timeline is not None
        self.trace = trace
        self.session = Session(1, REQUEST, arrival=0)
        self.timeline = trace.timeline

    def start(self) -> None:
        self.session.start(COLD_START, [0], 0)
        self.timeline.note(self.session)

    def preempt(self) -> None:
        self.session.preempt()
        self.timeline.note(self.session)

    def prefill(self) -> None:
        self.session.advance_prefill(len(self.session.tokens))
        self.session.commit_first(7)
        self.timeline.note(self.session)
        self.deliver(1)

    def run_round(self, num_accepted: int) -> None:
        self.session.commit_round(
            [8] * (num_accepted + 1), num_proposed=15, num_verified=4, num_accepted=num_accepted
        )
        self.deliver(num_accepted + 1)

    def end(self) -> None:
        self.timeline.end(self.session, "unix:/drafter")
        self.deliver(0, FinishReason.LENGTH)

    def deliver(self, num_tokens: int, reason: FinishReason | None = None) -> None:
        self.trace.last = RoundOutput((7,) * num_tokens, "", 0, reason, self.session.usage)


def spans_of(story: Callable[[Request], None]) -> Receiver:
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint), "verifier-1")
        try:
            with traced_phases(tracing, REQUEST) as trace:
                story(Request(trace))
        except (EngineStoppedError, asyncio.CancelledError):
            pass
        tracing.close()
    return receiver


def names(receiver: Receiver) -> list[str]:
    return [span.name for span in sorted(receiver.spans, key=lambda span: (span.began_ns, span.ended_ns))]


def served(request: Request) -> None:
    request.start()
    request.prefill()
    request.run_round(3)
    request.run_round(0)
    request.end()


def test_each_phase_is_a_span_of_the_request_s_trace_and_ends_where_the_next_begins() -> None:
    receiver = spans_of(served)
    assert names(receiver) == ["queue", "prefill", "decode"]
    assert {(span.trace_id, span.parent_id) for span in receiver.spans} == {("a" * 32, "b" * 16)}
    assert {span.attributes["dspine.verifier.id"] for span in receiver.spans} == {"verifier-1"}
    queue, prefill, decode = (receiver.only(name) for name in ("queue", "prefill", "decode"))
    assert queue.began_ns <= queue.ended_ns <= prefill.ended_ns <= decode.ended_ns
    assert not any(span.has_failed for span in receiver.spans)


def test_decoding_tells_of_its_rounds_and_prefill_of_the_prompt() -> None:
    receiver = spans_of(served)
    prefill = receiver.only("prefill").attributes
    assert (prefill["gen_ai.usage.input_tokens"], prefill["dspine.cached_tokens"]) == (3, 0)
    decode = receiver.only("decode").attributes
    assert (decode["dspine.rounds"], decode["dspine.acceptance_length"]) == (2, 2.5)
    assert (decode["dspine.proposed_tokens"], decode["dspine.verified_tokens"]) == (30, 8)
    assert decode["dspine.accepted_tokens"] == 3
    assert decode["gen_ai.usage.output_tokens"] == 6
    assert decode["gen_ai.response.finish_reasons"] == ["length"]
    assert decode["dspine.drafter.endpoint"] == "unix:/drafter"


def test_a_request_that_was_preempted_shows_its_phases_twice() -> None:
    def story(request: Request) -> None:
        request.start()
        request.prefill()
        request.run_round(1)
        request.preempt()
        request.start()
        request.prefill()
        request.run_round(3)
        request.end()

    receiver = spans_of(story)
    assert names(receiver) == ["queue", "prefill", "decode"] * 2
    lengths = [span.attributes["dspine.acceptance_length"] for span in receiver.named("decode")]
    assert lengths == [2.0, 4.0]
    reasons = [span.attributes.get("gen_ai.response.finish_reasons") for span in receiver.named("decode")]
    assert reasons == [None, ["length"]]


def test_a_request_without_rounds_has_no_acceptance_length() -> None:
    def story(request: Request) -> None:
        request.start()
        request.prefill()
        request.end()

    decode = spans_of(story).only("decode").attributes
    assert decode["dspine.rounds"] == 0
    assert "dspine.acceptance_length" not in decode


def test_a_caller_that_leaves_cuts_off_the_phase_that_goes_on() -> None:
    def story(request: Request) -> None:
        request.start()
        request.prefill()
        request.run_round(2)
        raise asyncio.CancelledError

    receiver = spans_of(story)
    assert [span.has_failed for span in receiver.named("queue") + receiver.named("prefill")] == [False, False]
    decode = receiver.only("decode")
    assert (decode.has_failed, decode.attributes["error.type"]) == (True, "aborted")
    assert (decode.attributes["dspine.rounds"], decode.attributes["dspine.acceptance_length"]) == (1, 3.0)


def test_a_request_that_ends_before_it_is_admitted_has_waited_only() -> None:
    def story(request: Request) -> None:
        del request
        raise EngineStoppedError("the prompt was: secret")

    receiver = spans_of(story)
    assert names(receiver) == ["queue"]
    assert (receiver.spans[0].has_failed, receiver.spans[0].attributes["error.type"]) == (
        True,
        "EngineStoppedError",
    )


def test_what_the_loop_knows_already_is_told_though_the_caller_has_not_got_it() -> None:
    def story(request: Request) -> None:
        request.start()
        request.prefill()
        request.trace.last = None
        raise asyncio.CancelledError

    decode = spans_of(story).only("decode").attributes
    assert (decode["dspine.rounds"], decode["gen_ai.usage.output_tokens"]) == (0, 1)


def test_a_caller_that_leaves_does_so_by_the_clock_of_what_was_noted() -> None:
    timeline = Timeline(iter([1.0, 2.0]).__next__)
    assert timeline.now(timeline.moments[-1], None) == replace(timeline.moments[-1], at_s=2.0)


@pytest.mark.parametrize("traceparent", ["", TRACEPARENT])
def test_nothing_is_noted_of_a_request_that_is_not_traced(traceparent: str) -> None:
    request = GenerateRequest("r", (1,), SamplingParams(), StopConditions(1), traceparent=traceparent)
    with traced_phases(NO_TRACING, request) as trace:
        assert trace.timeline is None
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        with traced_phases(tracing, request) as trace:
            assert isinstance(trace.timeline, Timeline) == bool(traceparent)
        tracing.close()
    assert len(receiver.spans) == bool(traceparent)
