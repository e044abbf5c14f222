from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError

from dspine_cluster.core.cluster_records import Fingerprints, ReplicaDelta, ReplicaLoad
from dspine_cluster.core.placement import Placer
from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions
from dspine_serve import choices, generator, placing
from dspine_serve.generator import ServeGenerator
from dspine_serve.placing import Placing
from dspine_serve.prompt_keys import KeyMaker
from dspine_serve.round_items import unpack_rounds
from tests.serve.fake_verifiers import MODELS, FakeHandle, FakeVerifier, Picture, text_of, token_at

REQUEST = GenerateRequest("id", tuple(range(40)), SamplingParams(), StopConditions(max_tokens=9))
TOKENS = tuple(token_at(position) for position in range(9))
OLD = Fingerprints("another", "drafter", "tokenizer")
OLD_TOKENS = tuple(token_at(position, OLD) for position in range(9))


class Ingress:
    """A generator in front of fake verifiers, with a picture in which all of them are."""

    def __init__(self, *verifiers: FakeVerifier, is_pictured: bool = True) -> None:
        self.handle = FakeHandle(*verifiers)
        self.reported_dead: list[str] = []
        self.placing = Placing(self.reported_dead.append, Placer(random=Random(0)))
        self.picture = Picture(self.placing)
        if is_pictured:
            self.picture.add(*(verifier.replica_id for verifier in verifiers))
        self.generator = ServeGenerator(self.handle, self.placing, KeyMaker(MODELS, "float32"))

    async def collect(self, request: GenerateRequest = REQUEST) -> list[RoundOutput]:
        return [output async for output in self.generator.generate(request)]

    def assert_nothing_is_held(self) -> None:
        stats = self.placing.stats()
        assert (stats["reservations"], stats["open_streams"], self.handle.num_calls) == (0, 0, 0)
        assert all(call.is_cancelled for call in self.handle.calls)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_LOOK_AGAIN_S", 0.01)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what ends because something took too long. What has to succeed gets the time that it needs."""
    monkeypatch.setattr(choices, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(choices, "_RESUME_PATIENCE_S", 0.1)
    monkeypatch.setattr(placing, "_DOUBT_S", 0.02)
    monkeypatch.setattr(generator, "_RESERVE_TIMEOUT_S", 0.02)


def joined(outputs: list[RoundOutput]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


async def test_the_verifiers_rounds_are_passed_on_as_they_are() -> None:
    ingress = Ingress(FakeVerifier("a"))
    outputs = await ingress.collect()
    items = [item async for item in FakeVerifier("a").generate(REQUEST)]
    assert outputs == [output for item in items if isinstance(item, bytes) for output in unpack_rounds(item)]
    ingress.assert_nothing_is_held()


async def test_outputs_travel_by_value_as_a_stream() -> None:
    assert Ingress().handle.options_given == {
        "method_name": "generate",
        "stream": True,
        "_by_reference": False,
    }


async def test_the_verifier_is_asked_to_use_the_drafter_that_was_picked_with_it() -> None:
    verifier = FakeVerifier("a")
    await Ingress(verifier).collect()
    assert verifier.requests[0].preferred_drafter == ("unix:/a",)


async def test_a_verifier_with_another_target_is_not_used_beside_one_that_fits() -> None:
    ingress = Ingress(FakeVerifier("old", OLD), FakeVerifier("new"), is_pictured=False)
    ingress.picture.add("old", models=OLD)
    ingress.picture.add("new")
    for number in range(5):
        await ingress.collect(replace(REQUEST, request_id=str(number)))
    assert {pin.replica_id for pin in ingress.handle.pins} == {"new"}


async def test_until_a_verifier_with_the_new_target_is_there_those_with_the_old_one_serve() -> None:
    ingress = Ingress(FakeVerifier("old", OLD), is_pictured=False)
    ingress.picture.add("old", models=OLD)
    assert joined(await ingress.collect()) == OLD_TOKENS
    ingress.assert_nothing_is_held()


@pytest.mark.usefixtures("short_patience")
async def test_a_verifier_with_another_tokenizer_is_never_used() -> None:
    models = replace(MODELS, tokenizer="another")
    ingress = Ingress(FakeVerifier("old", models), is_pictured=False)
    ingress.picture.add("old", models=models)
    with pytest.raises(EngineStoppedError):
        await ingress.collect()
    assert not ingress.handle.pins


@pytest.mark.parametrize("is_lost_at", range(1, 5))
async def test_a_stream_that_began_with_the_old_target_goes_on_with_it_beside_new_ones(
    is_lost_at: int,
) -> None:
    verifiers = (FakeVerifier("old 1", OLD), FakeVerifier("new"), FakeVerifier("old 2", OLD))
    ingress = Ingress(*verifiers, is_pictured=False)
    ingress.picture.add("old 1", models=OLD)
    stream = ingress.generator.generate(REQUEST)
    outputs = [await anext(stream) for _ in range(is_lost_at)]
    ingress.picture.add("new")
    ingress.picture.add("old 2", models=OLD)
    verifiers[0].kill()
    outputs += [output async for output in stream]
    assert joined(outputs) == OLD_TOKENS
    assert not verifiers[1].requests
    ingress.assert_nothing_is_held()


@pytest.mark.usefixtures("short_patience")
async def test_a_stream_whose_target_is_gone_ends_with_an_error_and_is_not_mixed_with_another() -> None:
    verifiers = (FakeVerifier("old", OLD), FakeVerifier("new"))
    ingress = Ingress(*verifiers, is_pictured=False)
    ingress.picture.add("old", models=OLD)
    stream = ingress.generator.generate(REQUEST)
    await anext(stream)
    ingress.picture.add("new")
    verifiers[0].kill()
    with pytest.raises(EngineStoppedError):
        await anext(stream)
    assert not verifiers[1].requests
    assert ingress.placing.stats()["lost_streams_total"] == 1
    ingress.assert_nothing_is_held()


async def test_a_stream_that_has_given_nothing_yet_may_go_on_with_another_target() -> None:
    verifiers = (FakeVerifier("old", OLD, stops_after=0), FakeVerifier("new"))
    ingress = Ingress(*verifiers, is_pictured=False)
    ingress.picture.add("old", models=OLD)
    stream = asyncio.create_task(ingress.collect())
    await until(lambda: verifiers[0].hangs)
    ingress.picture.add("new")
    verifiers[0].kill()
    assert joined(await stream) == TOKENS


async def test_without_a_picture_a_verifier_refuses_what_needs_another_target() -> None:
    verifiers = (FakeVerifier("old", OLD), FakeVerifier("new"))
    ingress = Ingress(*verifiers, is_pictured=False)
    assert joined(await ingress.collect()) == TOKENS
    assert [pin.exclude for pin in ingress.handle.pins] == [frozenset(), {"old"}]
    ingress.assert_nothing_is_held()


@pytest.mark.usefixtures("short_patience")
async def test_a_stream_is_not_resumed_with_another_target_when_the_picture_is_lost() -> None:
    verifiers = (FakeVerifier("old", OLD), FakeVerifier("new"))
    ingress = Ingress(*verifiers, is_pictured=False)
    ingress.picture.add("old", models=OLD)
    stream = ingress.generator.generate(REQUEST)
    await anext(stream)
    verifiers[0].kill()
    with pytest.raises(EngineStoppedError):
        await anext(stream)
    assert {pin.replica_id for pin in ingress.handle.pins} == {"old", ""}
    assert not verifiers[1].requests


async def test_a_transient_outage_costs_only_the_stream_that_met_it() -> None:
    verifier = FakeVerifier("a", stops_after=1)
    ingress = Ingress(verifier, FakeVerifier("b"), is_pictured=False)
    ingress.picture.add("a")
    streams = [
        asyncio.create_task(ingress.collect(replace(REQUEST, request_id=str(number)))) for number in range(2)
    ]
    await until(lambda: len(verifier.requests) == 2)
    await until(lambda: verifier.hangs)
    verifier.hangs, verifier.stops_after, verifier.is_unavailable = False, None, True
    ingress.picture.add("b")
    verifier.ended.set()
    assert [joined(await stream) for stream in streams] == [TOKENS, TOKENS]
    assert ingress.placing.stats()["resumed_streams_total"] == 1
    assert ingress.reported_dead == []
    assert ingress.placing.shunned == {"a"}
    ingress.assert_nothing_is_held()


@pytest.mark.parametrize("is_lost_at", range(5))
async def test_a_killed_verifiers_stream_goes_on_elsewhere_with_the_same_tokens(is_lost_at: int) -> None:
    first, second = FakeVerifier("first"), FakeVerifier("second")
    ingress = Ingress(first, second, is_pictured=False)
    ingress.picture.add("first")
    outputs: list[RoundOutput] = []
    async with aclosing(ingress.generator.generate(REQUEST)) as stream:
        for _ in range(is_lost_at):
            outputs.append(await anext(stream))
        first.kill()
        ingress.picture.add("second")
        outputs += [output async for output in stream]
    assert joined(outputs) == TOKENS
    assert "".join(output.text for output in outputs) == text_of(TOKENS)
    assert [output.finish_reason for output in outputs if output.finish_reason] == [FinishReason.LENGTH]
    assert second.requests[0].forced_output_ids == TOKENS[: 2 * is_lost_at]
    assert ingress.reported_dead == ["first"]
    ingress.assert_nothing_is_held()


async def test_a_resumed_streams_usage_counts_all_rounds_and_the_first_ones_cache() -> None:
    ingress = Ingress(FakeVerifier("first", stops_after=2), FakeVerifier("a"), is_pictured=False)
    ingress.picture.add("first")
    stream = ingress.generator.generate(REQUEST)
    [await anext(stream) for _ in range(2)]
    ingress.handle.verifiers["first"].kill()
    ingress.picture.add("a")
    usage = [output async for output in stream][-1].usage
    assert (usage.prompt_tokens, usage.output_tokens) == (40, 9)
    assert usage.cached_prompt_tokens == len("first")
    assert (usage.num_rounds, usage.proposed_tokens, usage.verified_tokens) == (5, 25, 20)
    assert usage.accepted_tokens == 4


@pytest.mark.usefixtures("short_patience")
async def test_a_stream_of_a_verifier_that_hangs_is_resumed_once_the_picture_has_lost_it() -> None:
    first, second = FakeVerifier("first", stops_after=1), FakeVerifier("second")
    ingress = Ingress(first, second, is_pictured=False)
    ingress.picture.add("first")
    stream = asyncio.create_task(ingress.collect())
    await until(lambda: first.hangs)
    ingress.picture.add("second")
    ingress.picture.remove("first")
    assert joined(await stream) == TOKENS
    assert ingress.reported_dead == []
    ingress.assert_nothing_is_held()


@pytest.mark.usefixtures("short_patience")
async def test_a_stream_that_waits_for_a_slot_of_a_verifier_that_hangs_is_taken_elsewhere() -> None:
    ingress = Ingress(FakeVerifier("first", hangs=True), FakeVerifier("second"), is_pictured=False)
    ingress.picture.add("first")
    stream = asyncio.create_task(ingress.collect())
    await until(lambda: bool(ingress.handle.pins))
    ingress.picture.add("second")
    assert joined(await stream) == TOKENS
    ingress.assert_nothing_is_held()


async def test_a_stream_whose_engine_has_ended_is_resumed() -> None:
    ingress = Ingress(FakeVerifier("first", refuses_with=EngineStoppedError("x")), is_pictured=False)
    ingress.picture.add("first")
    ingress.handle.verifiers["second"] = second = FakeVerifier("second")
    stream = asyncio.create_task(ingress.collect())
    await until(lambda: bool(ingress.handle.pins))
    ingress.picture.add("second")
    assert joined(await stream) == TOKENS
    assert second.requests[0].forced_output_ids == ()


async def test_after_two_resumes_a_stream_that_is_lost_again_ends_with_an_error() -> None:
    ingress = Ingress(*(FakeVerifier(name, refuses_with=EngineStoppedError("x")) for name in "abcd"))
    with pytest.raises(EngineStoppedError, match="send the request again"):
        await ingress.collect()
    assert len(ingress.handle.calls) == 3
    assert ingress.placing.stats()["resumed_streams_total"] == 2
    assert ingress.placing.stats()["lost_streams_total"] == 1
    ingress.assert_nothing_is_held()


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(("others", "error"), [((), EngineStoppedError), (("b",), OverloadedError)])
async def test_a_stream_that_no_other_verifier_takes_counts_as_lost(
    others: tuple[str, ...], error: type[Exception]
) -> None:
    first = FakeVerifier("first", stops_after=1)
    ingress = Ingress(first, *(FakeVerifier(name, max_calls=0) for name in others), is_pictured=False)
    ingress.picture.add("first")
    stream = ingress.generator.generate(REQUEST)
    await anext(stream)
    first.kill()
    ingress.picture.add(*others)
    with pytest.raises(error):
        await anext(stream)
    assert ingress.placing.stats()["lost_streams_total"] == 1
    ingress.assert_nothing_is_held()


async def test_a_request_that_no_verifier_takes_is_no_lost_stream() -> None:
    ingress = Ingress(FakeVerifier("a", max_calls=0))
    with pytest.raises(OverloadedError):
        await ingress.collect()
    assert "lost_streams_total" not in ingress.placing.stats()


async def test_a_verifier_lost_after_its_last_item_changes_nothing() -> None:
    verifier = FakeVerifier("a")
    ingress = Ingress(verifier, FakeVerifier("b"), is_pictured=False)
    ingress.picture.add("a")
    outputs = []
    async for output in ingress.generator.generate(REQUEST):
        outputs.append(output)
        if output.finish_reason is not None:
            ingress.placing.evict("a")
    assert joined(outputs) == TOKENS
    assert len(ingress.handle.calls) == 1


async def test_each_try_has_a_uid_of_its_own() -> None:
    ingress = Ingress(FakeVerifier("a", stops_after=1), FakeVerifier("b", stops_after=1), FakeVerifier("c"))
    stream = asyncio.create_task(ingress.collect())
    while not stream.done():
        await asyncio.sleep(0)
        for verifier in ingress.handle.verifiers.values():
            if verifier.hangs:
                verifier.kill()
    assert joined(await stream) == TOKENS
    uids = [request.request_id for v in ingress.handle.verifiers.values() for request in v.requests]
    assert len(uids) == len(set(uids)) > 1


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_verifier_that_gives_no_slot_is_passed_over_at_once(is_full: bool) -> None:
    refusing = FakeVerifier("a", max_calls=0) if is_full else FakeVerifier("a", is_known=False)
    ingress = Ingress(refusing, FakeVerifier("b"))
    for number in range(8):
        assert joined(await ingress.collect(replace(REQUEST, request_id=str(number)))) == TOKENS
    assert {pin.replica_id for pin in ingress.handle.pins} == {"a", "b"}
    assert len(ingress.handle.calls) == 8
    ingress.assert_nothing_is_held()


async def test_at_most_three_full_verifiers_are_asked() -> None:
    ingress = Ingress(*(FakeVerifier(name, max_calls=0) for name in "abcde"))
    with pytest.raises(OverloadedError):
        await ingress.collect()
    assert len(ingress.handle.pins) == 3
    ingress.assert_nothing_is_held()


async def test_no_room_in_the_picture_is_overload_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def changed(_: Placing, timeout_s: float) -> None:
        waits.append(timeout_s)

    monkeypatch.setattr(Placing, "changed", changed)
    ingress = Ingress(FakeVerifier("a"), is_pictured=False)
    ingress.picture.add("a", max_requests=0)
    with pytest.raises(OverloadedError):
        await ingress.collect()
    assert not waits
    assert not ingress.handle.pins


async def test_a_verifier_that_has_too_many_requests_after_all_is_passed_over() -> None:
    ingress = Ingress(FakeVerifier("a", refuses_with=OverloadedError("full")), is_pictured=False)
    ingress.picture.add("a")
    with pytest.raises(OverloadedError):
        await ingress.collect()
    ingress.handle.verifiers["b"] = FakeVerifier("b")
    ingress.picture.add("b")
    assert joined(await ingress.collect(replace(REQUEST, request_id="next"))) == TOKENS


@pytest.mark.usefixtures("short_patience")
async def test_without_a_verifier_a_request_waits_for_one_but_not_for_long() -> None:
    ingress = Ingress(FakeVerifier("a", is_known=False), is_pictured=False)
    with pytest.raises(EngineStoppedError):
        await ingress.collect()
    stream = asyncio.create_task(ingress.collect())
    await asyncio.sleep(0.01)
    ingress.handle.verifiers["a"].is_known = True
    assert joined(await stream) == TOKENS


async def test_without_a_picture_any_verifier_that_serve_knows_is_used() -> None:
    ingress = Ingress(FakeVerifier("a"), is_pictured=False)
    assert joined(await ingress.collect()) == TOKENS
    assert ingress.placing.stats()["placements_total{reason=unknown}"] == 1
    ingress.assert_nothing_is_held()


async def test_a_wrong_request_is_refused_as_the_verifier_did() -> None:
    error = RequestError("bad", param="seed")
    ingress = Ingress(FakeVerifier("a", refuses_with=error), FakeVerifier("b", refuses_with=error))
    with pytest.raises(RequestError) as caught:
        await ingress.collect()
    assert caught.value is error
    assert len(ingress.handle.calls) == 1
    ingress.assert_nothing_is_held()


async def test_a_full_queue_is_overload_with_its_retry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_replica(pin: Any) -> Any:
        raise BackPressureError(5, 5, 429, 7.0)

    ingress = Ingress(FakeVerifier("a"))
    monkeypatch.setattr(ingress.handle, "choose_replica", choose_replica)
    with pytest.raises(OverloadedError) as caught:
        await ingress.collect()
    assert caught.value.retry_after_s == 7.0
    ingress.assert_nothing_is_held()


@pytest.mark.parametrize("num_turns", range(12))
async def test_cancelling_at_any_point_frees_everything(num_turns: int) -> None:
    ingress = Ingress(FakeVerifier("a", stops_after=1), FakeVerifier("b", hangs=True))
    stream = asyncio.create_task(ingress.collect())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    ingress.assert_nothing_is_held()


async def test_cancelling_while_resuming_frees_everything() -> None:
    ingress = Ingress(FakeVerifier("a", stops_after=1))
    stream = asyncio.create_task(ingress.collect())
    await until(lambda: ingress.handle.verifiers["a"].hangs)
    ingress.handle.verifiers["a"].kill()
    await asyncio.sleep(0.03)
    assert not stream.done()
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    ingress.assert_nothing_is_held()


async def test_closing_ends_the_call() -> None:
    ingress = Ingress(FakeVerifier("a"))
    async with aclosing(ingress.generator.generate(REQUEST)) as outputs:
        await anext(outputs)
        assert ingress.placing.stats()["open_streams"] == 1
    ingress.assert_nothing_is_held()


async def test_no_answering_verifier_is_an_engine_that_stopped() -> None:
    class Method:
        def remote(self) -> Any:
            raise ActorUnavailableError("gone", None)

    ingress = Ingress(is_pictured=False)
    ingress.handle.check_health = Method()  # type: ignore[attr-defined]
    with pytest.raises(EngineStoppedError):
        await ingress.generator.check_health()


async def test_full_verifiers_are_healthy_and_not_ready() -> None:
    ingress = Ingress(FakeVerifier("a"))
    await ingress.generator.check_ready()
    ingress.picture.tell(ReplicaDelta("a", "1", 1, ReplicaLoad(running_requests=60, waiting_requests=40)))
    await ingress.generator.check_health()
    with pytest.raises(OverloadedError):
        await ingress.generator.check_ready()


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        await asyncio.sleep(0)
