"""A request that moves from one verifier to another shows both in its trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace

import pytest

from dspine_cluster.config import TracingConfig
from dspine_cluster.errors import OverloadedError
from dspine_cluster.observability.tracing import open_tracing
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_serve.generator import ServeGenerator
from dspine_serve.placing import Placing
from dspine_serve.prompt_keys import KeyMaker
from tests.otlp_receiver import Receiver, receiving
from tests.serve.fake_verifiers import MODELS, FakeHandle, FakeVerifier, Picture

ROOT = "b" * 16
REQUEST = GenerateRequest(
    "id",
    tuple(range(40)),
    SamplingParams(),
    StopConditions(max_tokens=9),
    traceparent=f"00-{'a' * 32}-{ROOT}-01",
)


@contextmanager
def ingress(*verifiers: FakeVerifier) -> Iterator[tuple[ServeGenerator, Picture, Receiver]]:
    """A generator that traces, and its picture; spans are there when the context is left."""
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint))
        placing = Placing(lambda _: None)
        handle = FakeHandle(*verifiers)
        yield (
            ServeGenerator(handle, placing, KeyMaker(MODELS, "float32"), tracing),
            Picture(placing),
            receiver,
        )
        tracing.close()


async def test_a_stream_is_a_call_of_its_verifier_and_what_happens_there_lies_below_it() -> None:
    verifier = FakeVerifier("a")
    with ingress(verifier) as (generator, picture, receiver):
        picture.add("a")
        assert [output async for output in generator.generate(REQUEST)]
    span = receiver.only("generate")
    assert (span.kind, span.trace_id, span.parent_id) == ("client", "a" * 32, ROOT)
    assert verifier.requests[0].traceparent.split("-")[1:3] == [span.trace_id, span.span_id]
    assert (span.attributes["dspine.verifier.id"], span.has_failed) == ("a", False)


async def test_a_request_that_moves_shows_both_verifiers_and_what_became_of_the_first() -> None:
    first, second = FakeVerifier("first"), FakeVerifier("second")
    with ingress(first, second) as (generator, picture, receiver):
        picture.add("first")
        async with aclosing(generator.generate(REQUEST)) as stream:
            await anext(stream)
            first.kill()
            picture.add("second")
            assert [output async for output in stream]
    lost, resumed = receiver.named("generate")
    assert lost.trace_id == resumed.trace_id
    assert lost.parent_id == resumed.parent_id == ROOT
    assert (lost.attributes["dspine.verifier.id"], lost.attributes["error.type"]) == ("first", "LostError")
    assert (resumed.attributes["dspine.verifier.id"], resumed.has_failed) == ("second", False)
    assert (lost.attributes["dspine.forced_tokens"], resumed.attributes["dspine.forced_tokens"]) == (0, 2)
    assert second.requests[0].traceparent.split("-")[2] == resumed.span_id


async def test_a_verifier_that_refuses_is_shown() -> None:
    with ingress(FakeVerifier("full", refuses_with=OverloadedError("no room"))) as (
        generator,
        picture,
        receiver,
    ):
        picture.add("full")
        with pytest.raises(OverloadedError):
            [output async for output in generator.generate(REQUEST)]
    refused = receiver.named("generate")[0]
    assert refused.attributes["dspine.verifier.id"] == "full"
    assert (refused.has_failed, refused.attributes["error.type"]) == (True, "RefusedError")


async def test_a_request_that_is_not_traced_has_no_spans() -> None:
    verifier = FakeVerifier("a")
    with ingress(verifier) as (generator, picture, receiver):
        picture.add("a")
        assert [output async for output in generator.generate(replace(REQUEST, traceparent=""))]
    assert receiver.spans == []
    assert verifier.requests[0].traceparent == ""
