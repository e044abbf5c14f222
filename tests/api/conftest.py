from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI

from dspine_cluster import miniature
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.routes import create_app
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig
from dspine_cluster.local_pair import local_pair
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_cluster.verifier.service import VerifierService
from tests.api.fakes import VOCAB_SIZE, FakeGenerator, byte_tokenizer

LIMITS = ApiLimits(max_model_len_tokens=512, vocab_size=VOCAB_SIZE, max_body_bytes=100_000, max_choices=8)


@dataclass(frozen=True)
class Api:
    """A running server and its clients."""

    url: str
    generator: FakeGenerator
    http: httpx.Client
    openai: openai.OpenAI


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Serves `app` from a thread; the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def running_api(generator: FakeGenerator, chat_template: str | None = None) -> Iterator[Api]:
    tokenizer = byte_tokenizer() if chat_template is None else byte_tokenizer(chat_template)
    app = create_app(generator, ChatTokenizer(tokenizer), "fake", LIMITS)
    with (
        listening(app) as url,
        httpx.Client(base_url=url, timeout=30) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Api(url, generator, http, client)


@pytest.fixture
def serve_api() -> Iterator[Callable[..., Api]]:
    """Starts a server for a generator and a chat template of the test's choice."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(running_api(*args))


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """A server for tests that only look at answers."""
    with running_api(FakeGenerator()) as running:
        yield running


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits up to ten seconds for a condition that another thread brings about."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.005)

    return wait


class Served:
    """A verifier as the interface wants it."""

    def __init__(self, verifier: VerifierService) -> None:
        self._verifier = verifier

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        return self._verifier.generate(request)

    async def check_health(self) -> None:
        self._verifier.check_health()

    async def check_ready(self) -> None:
        self._verifier.check_health()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The miniature behind the interface."""
    config = VerifierConfig(
        engine=EngineConfig(max_running_requests=8, pool_tokens=8192, max_model_len_tokens=1024),
        drafting=DraftingConfig(verify="fixed:15"),  # however slow the machine, drafters are used
    )
    tokenizer = ChatTokenizer.from_folder(miniature.folder("target"))
    with local_pair(config) as verifier:
        limits = ApiLimits(max_model_len_tokens=1024, vocab_size=3072)
        with listening(create_app(Served(verifier), tokenizer, "miniature", limits)) as url:
            yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client
