"""The application of `deployments.yaml`, as its users meet it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspine_cluster.api.status_routes import StatusBody
from dspine_cluster.bench.connections import run_load
from dspine_cluster.bench.http import StreamTarget
from dspine_serve.app import build
from dspine_serve.args import AppArgs
from dspine_serve.local_cluster import wait_until
from tests.serve.conftest import Application, connected_unix_sockets

pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def stream_text(client: openai.OpenAI, content: str, max_tokens: int, started: Event | None = None) -> str:
    """A greedy chat answer, read event by event."""
    stream = client.chat.completions.create(
        model="miniature",
        messages=[{"role": "user", "content": content}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = ""
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if started is not None and text:
            started.set()
    return text


def checked_proposals(application: Application) -> int:
    """Proposals that the target checked for a new request."""
    answer = application.openai.completions.create(
        model="miniature", prompt="1 + 1 =", max_tokens=32, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    return (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0)


def test_serve_can_see_how_to_validate_the_arguments() -> None:
    assert inspect.signature(build).parameters["args"].annotation is AppArgs


def test_placement_goes_by_the_settings() -> None:
    ingress = build(AppArgs.model_validate({"placement": {"request_s": 0.1}}))._bound_deployment
    assert ingress.init_args[0].placement.request_s == 0.1


def test_queues_are_bounded_and_a_full_one_tells_to_come_back() -> None:
    ingress = build(AppArgs())._bound_deployment
    verifier = ingress.init_args[2]._bound_deployment
    for deployment in (ingress, verifier):
        assert deployment.max_queued_requests > 0
        assert deployment.backpressure_config.status_code == 429
        assert deployment.backpressure_config.retry_after_s > 0


def test_openai_client_streams_a_chat_answer(application: Application) -> None:
    assert stream_text(application.openai, "What is 2 + 3?", max_tokens=24)


def test_curl_gets_a_chat_answer(application: Application) -> None:
    body = {"model": "miniature", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    url = f"{application.url}/v1/chat/completions"
    answer = subprocess.run(
        ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_health_answers_while_a_verifier_lives(application: Application) -> None:
    assert application.http.get("/health").status_code == 200


def test_metrics_tell_of_ingress_verifier_and_drafter(application: Application) -> None:
    stream_text(application.openai, "What is 2 + 4?", max_tokens=24)

    def counted() -> dict[str, float]:
        families = text_string_to_metric_families(application.http.get("/metrics").text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    told = ("time_to_first_token_seconds_count", "committed_tokens_total", "drafter_channels")
    wait_until(lambda: all(counted().get(f"dspine_{name}", 0.0) > 0 for name in told))


def test_ingress_and_verifier_tell_of_a_request_in_its_client_s_trace(application: Application) -> None:
    body = {"messages": [{"role": "user", "content": "What is 2 + 5?"}], "max_tokens": 16}
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    answer = application.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    application.traces.wait_for(5)
    parents = {span.span_id: span.name for span in application.traces.spans}
    assert {span.trace_id for span in application.traces.spans} == {"a" * 32}
    assert {span.name: parents.get(span.parent_id, span.parent_id) for span in application.traces.spans} == {
        "POST /v1/chat/completions": "b" * 16,
        "generate": "POST /v1/chat/completions",
        "queue": "generate",
        "prefill": "generate",
        "decode": "generate",
    }
    call, decode = application.traces.only("generate"), application.traces.only("decode")
    verifier = decode.resource["service.instance.id"]
    assert call.attributes["dspine.verifier.id"] == decode.attributes["dspine.verifier.id"] == verifier
    assert decode.attributes["gen_ai.usage.output_tokens"] == answer.json()["usage"]["completion_tokens"]


def test_errors_of_the_served_application_have_openai_shape(application: Application) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        application.openai.completions.create(model="miniature", prompt="x", max_tokens=10**6)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("name", [b"x-request-id", b"x-session-id", b"x-request-disconnect-disabled"])
def test_headers_that_serve_reads_itself_can_hold_anything(application: Application, name: bytes) -> None:
    assert application.http.get("/v1/models", headers={name: b"\xff"}).status_code == 200


def test_a_client_that_leaves_stops_its_generation(application: Application) -> None:
    finished = application.stats("Verifier")["finished_requests_total"]
    stream = application.openai.completions.create(
        model="miniature", prompt="x", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: application.stats("Verifier")["finished_requests_total"] > finished, timeout_s=5)


async def test_clients_that_leave_at_random_moments_cost_the_others_nothing_and_leave_nothing_behind(
    application: Application,
) -> None:
    def held() -> dict[str, float]:
        verifier, drafter, ingress = (application.stats(name) for name in ("Verifier", "Drafter", "Ingress"))
        figures = {
            **{name: verifier[name] for name in ("running_requests", "waiting_requests", "page_usage_ratio")},
            **{name: drafter[name] for name in ("drafter_requests", "drafter_page_usage_ratio")},
            **{name: ingress[name] for name in ("open_requests", "open_streams", "reservations")},
        }
        return {name: value for name, value in figures.items() if value}

    async def held_now() -> dict[str, float]:
        return await asyncio.to_thread(held)

    def num_tasks() -> float:
        return sum(application.stats(name)["event_loop_tasks"] for name in ("Ingress", "Verifier"))

    tasks = await asyncio.to_thread(num_tasks)
    port = urlsplit(application.url).port
    assert port is not None
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
    targets = [
        StreamTarget(port, "/v1/completions", {"prompt": f"Story {number}", **options})
        for number in range(40)
    ]
    moments = random.Random(1)
    leave_after_s = [moments.uniform(0, 1) for _ in targets[1::2]]
    load = await run_load(targets, leave_after_s, held_now, drain_timeout_s=60)
    assert load.leaks == {}
    assert [outcome.error for outcome in load.kept] == [None] * 20
    assert load.num_left > 0
    await asyncio.to_thread(wait_until, lambda: num_tasks() <= tasks)


def test_the_drafter_runs_in_another_process_than_the_verifier(application: Application) -> None:
    drafters, verifiers = application.pids("Drafter"), application.pids("Verifier")
    assert len(drafters) == len(verifiers) == 1
    assert drafters.isdisjoint(verifiers)


def test_rounds_go_over_a_socket_between_drafter_and_verifier(application: Application) -> None:
    blocks = application.stats("Drafter")["drafter_blocks_total"]
    assert checked_proposals(application) > 0
    assert application.stats("Drafter")["drafter_blocks_total"] > blocks
    [drafter] = application.pids("Drafter")
    paths = connected_unix_sockets(drafter)
    [path] = [path for path in paths if Path(path).name.startswith("drafter-")]
    assert Path(path).parent.stat().st_mode & 0o077 == 0


def test_a_request_is_placed_with_a_drafter_of_the_same_node_and_releases_its_reservation(
    application: Application,
) -> None:
    wait_until(lambda: application.stats("Ingress")["open_streams"] == 0)
    before = application.stats("Ingress")["colocated_placements_total"]
    checked_proposals(application)
    stats = application.stats("Ingress")
    assert stats["colocated_placements_total"] == before + 1
    assert stats["reservations"] == stats["open_streams"] == 0


def test_the_status_tells_of_the_pair_and_of_what_it_did(application: Application) -> None:
    checked_proposals(application)

    def told() -> StatusBody:
        return StatusBody.model_validate_json(application.http.get("/dspine/status").content)

    wait_until(lambda: told().recent.rounds > 0)
    status = told()
    assert status.model == "miniature"
    assert "Playground" in application.http.get("/").text
    [verifier], [drafter] = status.verifiers, status.drafters
    assert [pair.drafter for pair in verifier.drafters] == [drafter.id]
    assert status.tokens_per_s > 0
    assert (status.total.acceptance_length or 0) > 1
    assert sum(status.total.verify_length_shares) == pytest.approx(1)
    assert all(0 <= (ratio or 0) <= 1 for ratio in status.total.acceptance_by_position)


def test_a_killed_drafter_changes_no_text_and_drafts_again_once_it_is_back(application: Application) -> None:
    prompts = [f"Tell me a story about number {number}." for number in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        undisturbed = list(pool.map(lambda prompt: stream_text(application.openai, prompt, 192), prompts))
        started = [Event() for _ in prompts]
        disturbed = [
            pool.submit(stream_text, application.openai, prompt, 192, event)
            for prompt, event in zip(prompts, started, strict=True)
        ]
        assert all(event.wait(60) for event in started)
        assert not any(stream.done() for stream in disturbed)
        [killed] = application.pids("Drafter")
        os.kill(killed, signal.SIGKILL)
        assert [stream.result() for stream in disturbed] == undisturbed
    wait_until(lambda: len(application.pids("Drafter") - {killed}) == 1, timeout_s=120)
    wait_until(lambda: application.stats("Verifier")["connected_drafters"] == 1)
    assert checked_proposals(application) > 0


def test_a_stream_whose_ingress_is_killed_ends_with_an_error_and_the_next_one_is_served(
    application: Application,
) -> None:
    stream = application.openai.completions.create(
        model="miniature", prompt="x", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    [killed] = application.pids("Ingress")
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="send it again"):
        list(chunks)
    wait_until(lambda: len(application.pids("Ingress") - {killed}) == 1, timeout_s=120)
    wait_until(lambda: application.stats("Verifier")["running_requests"] == 0)
    wait_until(lambda: application.http.get("/ready").status_code == 200)
    assert stream_text(application.openai, "What is 2 + 3?", max_tokens=8)
