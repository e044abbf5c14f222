from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, VerifierConfig
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.page_hash import page_keys, verifier_root
from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from dspine_cluster.identity import make_hello
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.observability import catalogue
from dspine_cluster.observability.series import parse_series
from dspine_cluster.transport.messages import PROTOCOL_VERSION
from dspine_cluster.transport.socket import Listener, parse_endpoint
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions
from dspine_cluster.verifier.loading import LoadedVerifier, load_verifier
from dspine_cluster.verifier.service import VerifierService

SECRET = "0123456789abcdef"
CONFIG = VerifierConfig(
    engine=EngineConfig(
        max_model_len_tokens=512, pool_tokens=8192, max_running_requests=4, max_waiting_requests=8
    ),
    drafting=DraftingConfig(verify="fixed:15", first_deadline_s=5.0),
    secret=SECRET,
)


@pytest.fixture(scope="module")
def loaded() -> LoadedVerifier:
    torch.set_num_threads(1)
    return load_verifier(CONFIG)


@contextmanager
def running(loaded: LoadedVerifier, config: VerifierConfig = CONFIG) -> Iterator[VerifierService]:
    service = VerifierService(config, loaded)
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def drafter_process(endpoint: str, drafter: str = "miniature-dspine", secret: str = SECRET) -> Iterator[int]:
    """Its process id; ready when entered."""
    command = [sys.executable, "-m", "tests.verifier.drafter_process", endpoint, drafter, secret]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def make_request(text: str = "Tell me a story.", max_tokens: int = 48) -> GenerateRequest:
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    ids = tuple(load_tokenizer(miniature.folder("target")).encode(prompt).ids)
    stop = StopConditions(max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest("test", ids, SamplingParams(temperature=0.0), stop)


async def collect(service: VerifierService, request: GenerateRequest) -> list[RoundOutput]:
    return [output async for output in service.generate(request)]


def tokens_of(outputs: list[RoundOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        await asyncio.sleep(0.01)


async def test_the_last_item_alone_carries_the_finish_reason(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        outputs = await collect(service, make_request())
    assert [o.finish_reason for o in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert outputs[-1].usage.output_tokens == len(tokens_of(outputs)) == 48


async def test_more_requests_than_slots_are_all_served(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        streams = await asyncio.gather(*(collect(service, make_request(str(i), 12)) for i in range(10)))
    assert [len(tokens_of(outputs)) for outputs in streams] == [12] * 10


async def test_closing_the_stream_frees_the_request(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        stream = service.generate(make_request(max_tokens=400))
        await anext(stream)
        await stream.aclose()
        await until(lambda: service.stats()["finished_requests_total"] == 1)
        await until(lambda: service.stats()["running_requests"] == 0)
        assert service.stats()["page_usage_ratio"] == 0.0


async def test_cancelling_while_queued_frees_the_request(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        tasks = [asyncio.create_task(collect(service, make_request(max_tokens=300))) for _ in range(8)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: service.stats()["finished_requests_total"] == 8)


async def test_an_unusable_request_is_refused_before_any_work(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        with pytest.raises(RequestError):
            await collect(service, replace(make_request(), prompt_ids=(1,) * 512))
        assert service.stats()["prompt_tokens_total"] == 0


async def test_max_tokens_ends_at_the_context_limit(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        request = replace(make_request(max_tokens=10_000), prompt_ids=(5,) * 500)
        outputs = await collect(service, request)
    assert len(tokens_of(outputs)) == 12
    assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_requests_beyond_the_queue_are_refused_with_a_hint_when_to_retry(
    loaded: LoadedVerifier,
) -> None:
    with running(loaded) as service:
        streams = [service.generate(make_request(max_tokens=300)) for _ in range(12)]
        first = [asyncio.create_task(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as caught:
            await collect(service, make_request())
        assert caught.value.retry_after_s > 0
        for task, stream in zip(first, streams, strict=True):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await stream.aclose()


async def test_a_failing_engine_fails_its_streams_and_its_health(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_verifier(CONFIG)
    with running(loaded) as service:
        service.check_health()
        stream = service.generate(make_request(max_tokens=400))
        await anext(stream)

        def explode(*_: object) -> None:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(loaded.engine, "forward", explode)
        with pytest.raises(EngineStoppedError):
            async for _ in stream:
                pass
        with pytest.raises(EngineStoppedError):
            service.check_health()
        with pytest.raises(EngineStoppedError):
            await collect(service, make_request())


async def test_what_was_decoded_before_a_stop_is_still_delivered(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        stream = service.generate(make_request(max_tokens=4))
        outputs = [await anext(stream)]
        await until(lambda: service.stats()["finished_requests_total"] == 1)
        service.stop()
        outputs += [output async for output in stream]
    assert len(tokens_of(outputs)) == 4
    assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_the_drafter_runs_in_another_process_and_the_round_uses_its_socket(
    loaded: LoadedVerifier,
) -> None:
    with tempfile.TemporaryDirectory() as folder, running(loaded) as service:
        endpoint = f"unix:{Path(folder)}/d.sock"
        with drafter_process(endpoint) as pid:
            assert pid != os.getpid()
            expected = tokens_of(await collect(service, make_request()))
            service.set_drafter_endpoints([endpoint])
            await until(lambda: service.stats()["connected_drafters"] == 1)
            before = service.stats()["verified_tokens_total"]
            assert tokens_of(await collect(service, make_request())) == expected
            assert service.stats()["verified_tokens_total"] > before == 0


async def test_killing_the_drafter_while_streams_run_changes_nothing_but_speed(
    loaded: LoadedVerifier,
) -> None:
    requests = [make_request(f"Count to {n}.", 160) for n in range(8)]
    with tempfile.TemporaryDirectory() as folder, running(loaded) as service:
        endpoint = f"unix:{Path(folder)}/d.sock"
        expected = [tokens_of(o) for o in await asyncio.gather(*(collect(service, r) for r in requests))]
        with drafter_process(endpoint) as pid:
            service.set_drafter_endpoints([endpoint])
            await until(lambda: service.stats()["connected_drafters"] == 1)
            streams = [asyncio.create_task(collect(service, r)) for r in requests]
            await until(lambda: service.stats()["verified_tokens_total"] > 100)
            os.kill(pid, signal.SIGKILL)
            outputs = await asyncio.gather(*streams)
        assert [tokens_of(o) for o in outputs] == expected
        assert service.stats()["connected_drafters"] == 0
        with drafter_process(endpoint):
            await until(lambda: service.stats()["connected_drafters"] == 1)
            before = service.stats()["verified_tokens_total"]
            assert tokens_of(await collect(service, requests[0])) == expected[0]
            assert service.stats()["verified_tokens_total"] > before


async def test_a_stopped_drafter_process_delays_rounds_but_not_the_output(loaded: LoadedVerifier) -> None:
    with tempfile.TemporaryDirectory() as folder, running(loaded) as service:
        endpoint = f"unix:{Path(folder)}/d.sock"
        expected = tokens_of(await collect(service, make_request(max_tokens=160)))
        with drafter_process(endpoint) as pid:
            service.set_drafter_endpoints([endpoint])
            await until(lambda: service.stats()["connected_drafters"] == 1)
            stream = asyncio.create_task(collect(service, make_request(max_tokens=160)))
            await until(lambda: service.stats()["verified_tokens_total"] > 30)
            os.kill(pid, signal.SIGSTOP)
            outputs = await asyncio.wait_for(stream, timeout=60)
        assert tokens_of(outputs) == expected
        assert service.stats()["draft_fallback_total{reason=late}"] > 0


async def test_a_drafter_of_another_fingerprint_is_refused_and_counted(loaded: LoadedVerifier) -> None:
    with tempfile.TemporaryDirectory() as folder, running(loaded) as service:
        endpoint = f"unix:{Path(folder)}/d.sock"
        with drafter_process(endpoint, "miniature-dflash"):
            service.set_drafter_endpoints([endpoint])
            await asyncio.sleep(1.0)
            await collect(service, make_request())
        stats = service.stats()
    assert stats["connected_drafters"] == 0
    assert stats["verified_tokens_total"] == 0
    assert stats["draft_fallback_total{reason=fingerprint}"] > 0


async def test_a_drafter_with_another_secret_is_never_connected(loaded: LoadedVerifier) -> None:
    with tempfile.TemporaryDirectory() as folder, running(loaded) as service:
        endpoint = f"unix:{Path(folder)}/d.sock"
        with drafter_process(endpoint, secret="another secret 1"):
            service.set_drafter_endpoints([endpoint])
            await asyncio.sleep(1.0)
            await collect(service, make_request(max_tokens=4))
            assert service.stats()["connected_drafters"] == 0


async def test_beside_a_drafter_of_another_protocol_version_requests_decode_plainly_and_are_counted(
    loaded: LoadedVerifier,
) -> None:
    newer = msgspec.structs.replace(
        make_hello("drafter", miniature.folder("target"), miniature.folder("dspine"), "float32"),
        protocol=PROTOCOL_VERSION + 1,
    )
    config = replace(CONFIG, drafting=DraftingConfig(verify="fixed:15"))
    with tempfile.TemporaryDirectory() as folder, running(loaded, config) as service:
        expected = tokens_of(await collect(service, make_request(max_tokens=16)))
        endpoint = f"unix:{Path(folder)}/d.sock"
        with closing(Listener(parse_endpoint(endpoint), newer, SECRET.encode(), lambda channel: None)):
            service.set_drafter_endpoints([endpoint])
            await asyncio.sleep(0.5)
            assert tokens_of(await collect(service, make_request(max_tokens=16))) == expected
        stats = service.stats()
    assert stats["connected_drafters"] == stats["verified_tokens_total"] == 0
    # The last token of each request needs no draft.
    assert stats["draft_fallback_total{reason=absent}"] == stats["rounds_total"] - 2 == 28


async def test_without_drafter_the_service_decodes_plainly_and_counts_no_fallback() -> None:
    config = replace(CONFIG, drafter=ModelSource("none"))
    with running(load_verifier(config), config) as service:
        await collect(service, make_request(max_tokens=8))
        stats = service.stats()
    assert not [name for name in stats if name.startswith("draft_fallback")]
    assert stats["rounds_total"] == 7


async def test_the_catalogue_has_exactly_the_figures_of_a_verifier() -> None:
    config = replace(CONFIG, drafting=DraftingConfig(verify="dynamic"))
    with running(load_verifier(config), config) as service:
        await collect(service, make_request(max_tokens=8))
        told = {parse_series(figure)[0] for figure in service.stats()}
    # No proposal was verified.
    told |= {"verified_tokens_per_position_total", "accepted_tokens_per_position_total"}
    assert told == {name for metric in catalogue.VERIFIER for name in metric.figure_names}


async def test_restorable_prefixes_are_reported_once_as_they_come(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        assert service.take_report().load == ReplicaLoad()
        request = make_request("Tell me a story. " * 40, max_tokens=4)
        first, second = await collect(service, request), await collect(service, request)
        report, later = service.take_report(), service.take_report()
        cached = service.stats()["cached_prompt_tokens_total"]
    assert tokens_of(first) == tokens_of(second)
    usage = second[-1].usage
    assert 0 < usage.cached_prompt_tokens == cached < usage.prompt_tokens
    root = verifier_root(loaded.hello.target, CONFIG.engine.dtype, "")
    assert report.added
    assert report.added <= set(page_keys([*request.prompt_ids, *tokens_of(first)], root))
    assert not report.removed | later.added | later.removed


async def test_a_report_counts_every_request_once_though_the_loop_is_in_a_long_pass(
    loaded: LoadedVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    forward = loaded.engine.forward

    def wait_then_forward(*args: Any, **options: Any) -> Any:
        assert may_go_on.wait(20.0)
        return forward(*args, **options)

    monkeypatch.setattr(loaded.engine, "forward", wait_then_forward)
    requests = [replace(make_request(max_tokens=4), request_id=f"r{number}") for number in range(6)]
    with running(loaded) as service:
        streams = [asyncio.create_task(collect(service, request)) for request in requests]
        await until(lambda: len(service._sinks) == 6)
        report = service.take_report()
        assert report.load.running_requests + report.load.waiting_requests == 6
        assert report.load.queued_tokens == sum(len(request.prompt_ids) for request in requests)
        assert sorted(report.admitted) == [request.request_id for request in requests]
        may_go_on.set()
        await asyncio.gather(*streams)
        await until(lambda: service.take_report().load.running_requests == 0)
        report = service.take_report()
        assert (report.load.waiting_requests, report.load.queued_tokens, report.admitted) == (0, 0, ())
        assert report.load.prefill_tokens_per_s > 0


async def test_a_report_of_an_engine_that_has_ended_is_an_error(loaded: LoadedVerifier) -> None:
    with running(loaded) as service:
        service.take_report()
        service.stop()
        with pytest.raises(EngineStoppedError):
            service.take_report()
