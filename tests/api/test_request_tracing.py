"""What traces tell of requests: of the HTTP interface over a fake generator, and of a real pair below it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from dspine_cluster import miniature
from dspine_cluster.api.generation import Generator
from dspine_cluster.api.http_config import ApiKeyConfig, HttpConfig
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.config import DraftingConfig, EngineConfig, TracingConfig, VerifierConfig
from dspine_cluster.errors import EngineStoppedError, RequestError
from dspine_cluster.local_pair import local_pair
from dspine_cluster.observability.tracing import open_tracing
from tests.api.conftest import LIMITS, listening
from tests.api.fakes import FakeGenerator, byte_tokenizer
from tests.api.test_miniature_tool_use import Recorder
from tests.otlp_receiver import ReceivedSpan, Receiver, receiving

TRACE_ID, CALLER_ID = "a" * 32, "b" * 16
CHAT = "/v1/chat/completions"
SECRET = "a secret word"
BODY = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 10, "temperature": 0.5, "seed": 7}
TOKENIZER = ChatTokenizer(byte_tokenizer())


@contextmanager
def traced(generator: Generator, http: HttpConfig | None = None) -> Iterator[tuple[httpx.Client, Receiver]]:
    """A client of an application that traces; what was traced is there when the context is left."""
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint), "ingress")
        app = create_app(generator, TOKENIZER, "fake", LIMITS, http, tracing=tracing)
        with listening(app) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client, receiver
        tracing.close()


def post(client: httpx.Client, path: str = CHAT, **fields: object) -> httpx.Response:
    return client.post(path, json={**BODY, **fields})


def test_a_chat_is_a_span_with_what_was_asked_and_given() -> None:
    generator = FakeGenerator()
    with traced(generator) as (client, receiver):
        answer = post(client).json()
    span = receiver.only(f"POST {CHAT}")
    assert (span.kind, span.parent_id, span.has_failed) == ("server", "", False)
    assert generator.requests[0].traceparent.split("-")[1:3] == [span.trace_id, span.span_id]
    prompt_tokens = answer["usage"]["prompt_tokens"]
    assert span.attributes == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "url.path": CHAT,
        "url.scheme": "http",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "dspine",
        "gen_ai.request.model": "fake",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 10,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": 10,
        "dspine.cached_tokens": prompt_tokens // 16 * 16,
        "dspine.rounds": 4,
        "dspine.acceptance_length": 2.5,
    }


def test_no_text_of_a_request_or_an_answer_is_told() -> None:
    generators = [FakeGenerator(answer="an answer"), FakeGenerator(error=RequestError(f"not: {SECRET}"))]
    for generator in generators:
        with traced(generator) as (client, receiver):
            post(client)
            post(client, logit_bias={SECRET: 1})
        told = repr(receiver.spans)
        assert SECRET not in told
        assert "an answer" not in told


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_of_a_traced_client_belongs_to_the_client_s_trace(stream: bool) -> None:
    with traced(FakeGenerator()) as (client, receiver):
        headers = {"traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01"}
        client.post(CHAT, json={**BODY, "stream": stream}, headers=headers)
    span = receiver.only(f"POST {CHAT}")
    assert (span.trace_id, span.parent_id) == (TRACE_ID, CALLER_ID)
    assert span.attributes["gen_ai.usage.output_tokens"] == 10
    assert span.attributes["http.response.status_code"] == 200


def test_a_client_that_does_not_trace_its_request_has_it_left_out() -> None:
    generator = FakeGenerator()
    with traced(generator) as (client, receiver):
        client.post(CHAT, json=BODY, headers={"traceparent": f"00-{TRACE_ID}-{CALLER_ID}-00"})
    assert receiver.spans == []
    assert generator.requests[0].traceparent == ""


def test_completions_and_responses_are_traced_and_nothing_else_is() -> None:
    with traced(FakeGenerator()) as (client, receiver):
        client.post("/v1/completions", json={"prompt": ["one", "two"], "n": 2, "max_tokens": 4})
        client.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 4})
        client.post("/tokenize", json={"prompt": "Hello"})
        for path in ("/health", "/ready", "/v1/models"):
            client.get(path)
    assert {span.name for span in receiver.spans} == {"POST /v1/completions", "POST /v1/responses"}
    attributes = receiver.only("POST /v1/completions").attributes
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.choice.count"] == 4
    assert attributes["gen_ai.usage.input_tokens"] == len("one") + len("two")
    assert attributes["gen_ai.usage.output_tokens"] == 16
    assert attributes["gen_ai.response.finish_reasons"] == ["length"] * 4


def test_who_has_no_key_is_not_traced() -> None:
    keys = (ApiKeyConfig(name="somebody", key="0123456789abcdef"),)
    with traced(FakeGenerator(), HttpConfig(api_keys=keys)) as (client, receiver):
        assert post(client).status_code == 401
    assert receiver.spans == []


def test_a_refused_body_has_a_status_and_is_no_failure_of_the_server() -> None:
    with traced(FakeGenerator()) as (client, receiver):
        assert post(client, temperature=-1).status_code == 400
    span = receiver.only(f"POST {CHAT}")
    assert (span.attributes["http.response.status_code"], span.has_failed) == (400, False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_that_fails_is_a_failed_span(stream: bool) -> None:
    generator = FakeGenerator(error=EngineStoppedError("gone"), fail_after_rounds=2)
    with traced(generator) as (client, receiver):
        answer = post(client, stream=stream)
    span = receiver.only(f"POST {CHAT}")
    assert span.has_failed
    assert span.attributes["http.response.status_code"] == answer.status_code == (200 if stream else 503)
    assert span.attributes["error.type"] == ("EngineStoppedError" if stream else "503")
    assert span.attributes["gen_ai.usage.output_tokens"] == 6


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_a_failed_span(
    stream: bool, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    generator = FakeGenerator(round_s=0.01)
    with traced(generator) as (client, receiver):
        body = {**BODY, "max_tokens": 400, "stream": stream}
        if stream:
            with client.stream("POST", CHAT, json=body) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(CHAT, json=body, timeout=httpx.Timeout(60, read=0.2))
        eventually(lambda: generator.num_aborted == 1)
    span = receiver.only(f"POST {CHAT}")
    assert (span.has_failed, span.attributes["error.type"]) == (True, "aborted")


def test_a_receiver_that_is_away_disturbs_no_request() -> None:
    with receiving() as receiver:
        endpoint = receiver.endpoint
    tracing = open_tracing(TracingConfig(endpoint=endpoint, export_timeout_s=0.2, max_queued_spans=3))
    app = create_app(FakeGenerator(), TOKENIZER, "fake", LIMITS, tracing=tracing)
    with listening(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert [post(client).status_code for _ in range(8)] == [200] * 8
    tracing.close()
    assert sum(tracing.figures().values()) == 8
    assert tracing.figures()["trace_spans_total{outcome=exported}"] == 0


def test_a_real_pair_tells_of_queue_prefill_and_decoding_in_one_trace() -> None:
    engine = EngineConfig(max_running_requests=2, pool_tokens=2048, max_model_len_tokens=1024)
    config = VerifierConfig(engine=engine, drafting=DraftingConfig(verify="fixed:15", first_deadline_s=30.0))
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    limits = ApiLimits(max_model_len_tokens=1024, vocab_size=3072)
    body = {"messages": [{"role": "user", "content": "What is 6 times 7?"}], "temperature": 0}
    with receiving() as receiver:
        tracing = open_tracing(TracingConfig(endpoint=receiver.endpoint), "replica")
        with local_pair(config, tracing) as verifier:
            app = create_app(Recorder(verifier), tokenizer, "miniature", limits, tracing=tracing)
            with listening(app) as url, httpx.Client(base_url=url, timeout=60) as client:
                answers = [client.post(CHAT, json=body).json() for _ in range(2)]
        tracing.close()
    roots = receiver.named(f"POST {CHAT}")
    assert len({span.trace_id for span in roots}) == len(roots) == 2
    for root, answer in zip(roots, answers, strict=True):
        check_phases(root, [span for span in receiver.spans if span.parent_id == root.span_id], answer)


def check_phases(root: ReceivedSpan, phases: list[ReceivedSpan], answer: dict[str, object]) -> None:
    usage = json.loads(json.dumps(answer["usage"]))
    queue, prefill, decode = sorted(phases, key=lambda span: span.began_ns)
    assert [queue.name, prefill.name, decode.name] == ["queue", "prefill", "decode"]
    assert {span.trace_id for span in phases} == {root.trace_id}
    assert prefill.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert prefill.attributes["dspine.cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert decode.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    for name in ("dspine.rounds", "dspine.acceptance_length"):
        assert decode.attributes[name] == root.attributes[name]
    num_rounds = decode.attributes["dspine.rounds"]
    assert decode.attributes["dspine.acceptance_length"] == (usage["completion_tokens"] - 1) / num_rounds
    assert decode.attributes["dspine.drafter.endpoint"].startswith("unix:")
    assert decode.attributes["dspine.verifier.id"] == "replica"
    # Clocks are read one after the other; a wall clock that is set meanwhile moves by less than this.
    assert root.began_ns - 1e9 <= queue.began_ns <= prefill.began_ns <= decode.began_ns
    assert decode.ended_ns <= root.ended_ns + 1e9


def test_off_requests_carry_no_trace() -> None:
    generator = FakeGenerator()
    with listening(create_app(generator, TOKENIZER, "fake", LIMITS)) as url:
        headers = {"traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01"}
        assert httpx.post(url + CHAT, json=BODY, headers=headers, timeout=60).status_code == 200
    assert generator.requests[0].traceparent == ""
