"""A caller may go away at any time: what its request held is free again on both sides, and others notice nothing."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspine_cluster.config import DrafterServiceConfig, DraftingConfig, ModelSource, VerifierConfig
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.drafter.service import DrafterService
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import GenerateRequest
from dspine_cluster.verifier.loading import LoadedVerifier
from dspine_cluster.verifier.service import VerifierService
from tests.verifier.harness import (
    LoopHarness,
    byte_tokenizer,
    engine_config,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)
from tests.verifier.real_drafter import DRAFTER, VERIFIER, random_pair

SECRET = "0123456789abcdef"
ENGINE = engine_config(max_running_requests=2)
OTHER, VICTIM, QUEUED = (
    replace(make_request(prompt * 150, max_tokens=80), request_id=name)
    for prompt, name in zip(
        random_prompts(3, seed=5, max_length=1), ("other", "victim", "queued"), strict=True
    )
)


Models = tuple[Engine, Drafter]


class Gate:
    """Holds a thread where `passes` is called, from the first call that fits until it is opened."""

    def __init__(self) -> None:
        self._fits: Callable[..., bool] = lambda *_: False
        self._open = threading.Event()
        self.is_reached = False

    def close(self, fits: Callable[..., bool]) -> None:
        self._open.clear()
        self.is_reached = False
        self._fits = fits

    def open(self) -> None:
        self._fits = lambda *_: False
        self._open.set()

    def passes(self, *arguments: Any) -> None:
        if self._fits(*arguments):
            self.is_reached = True
            assert self._open.wait(60.0)


class Pair:
    """Both services over a Unix socket, with gates at the target's passes and at the drafter's batches."""

    def __init__(
        self, verifier: VerifierService, drafter: DrafterService, passes: Gate, drafts: Gate
    ) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self.passes = passes
        self.drafts = drafts

    def start(self, request: GenerateRequest) -> asyncio.Task[list[int]]:
        """A task that collects the request's tokens."""

        async def collect() -> list[int]:
            return [token async for output in self.verifier.generate(request) for token in output.token_ids]

        return asyncio.create_task(collect())

    async def cancel(self, task: asyncio.Task[list[int]], *, num_left: int) -> None:
        """Cancel, and await that the verifier has let go of the request: others are left."""
        assert not task.done()
        task.cancel()
        self.passes.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: self.num_requests <= num_left)

    @property
    def num_requests(self) -> float:
        stats = self.verifier.stats()
        return stats["running_requests"] + stats["waiting_requests"]

    async def check_free(self) -> None:
        """Await that neither side holds anything."""
        await until(lambda: self.num_requests == 0)
        assert self.verifier.stats()["page_usage_ratio"] == 0.0
        await until(lambda: self.drafter.stats()["drafter_requests"] == 0)
        assert self.drafter.stats()["drafter_page_usage_ratio"] == 0.0


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def models() -> Models:
    return random_pair(random_target(hybrid_config(), seed=8), "dspine", window=64, num_slots=2)


@pytest.fixture(scope="module")
def expected(models: Models) -> list[int]:
    """The other request's output when nobody goes away."""
    (result,) = LoopHarness(models[0].target, engine=models[0], max_running_requests=2).generate([OTHER])
    return result.token_ids


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dspine") as name:
        yield Path(name)


@asynccontextmanager
async def running_pair(models: Models, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Both run, the verifier knows how long drafts take, and it waits for them however long they take."""
    engine, model = models
    passes, drafts = Gate(), Gate()
    forward, draft = engine.forward, DraftRunner.draft

    def gated_forward(packed: Any, **options: Any) -> Any:
        passes.passes(packed)
        return forward(packed, **options)

    def gated_draft(runner: DraftRunner, asks: Any, contexts: Any) -> Any:
        drafts.passes(asks)
        return draft(runner, asks, contexts)

    monkeypatch.setattr(engine, "forward", gated_forward)
    monkeypatch.setattr(DraftRunner, "draft", gated_draft)
    loaded = LoadedVerifier(engine, TokenBytes(byte_tokenizer()), model.config, VERIFIER)
    drafting = DraftingConfig(verify="fixed:15", late_factor=1e6, first_deadline_s=60.0)
    verifier = VerifierService(
        VerifierConfig(ModelSource("unused"), engine=ENGINE, drafting=drafting, secret=SECRET), loaded
    )
    endpoint = f"unix:{folder}/d.sock"
    drafter = DrafterService(
        DrafterServiceConfig(endpoints=(endpoint,), secret=SECRET, pool_tokens=2048, max_context_tokens=256),
        model,
        DRAFTER,
    )
    drafter.start()
    verifier.start()
    try:
        verifier.set_drafter_endpoints([endpoint])
        await until(lambda: verifier.stats()["connected_drafters"] == 1)
        pair = Pair(verifier, drafter, passes, drafts)
        await pair.start(replace(make_request([1] * 20, max_tokens=60), cache_salt="warm-up"))
        assert verifier.stats()["verified_tokens_total"] > 0
        yield pair
        await pair.check_free()
    finally:
        passes.open()
        drafts.open()
        verifier.stop()
        drafter.stop()
    verifier._loop.streams.check_integrity()
    assert verifier._loop.streams.num_free_slots == ENGINE.max_running_requests
    drafter._loop.contexts.check_integrity()


async def test_cancelling_while_queued_frees_everything(
    models: Models, expected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_pair(models, folder, monkeypatch) as pair:
        pair.passes.close(lambda packed: packed.num_blocks == 2)
        other, victim, queued = pair.start(OTHER), pair.start(VICTIM), pair.start(QUEUED)
        await until(lambda: pair.passes.is_reached)
        assert pair.verifier.stats()["waiting_requests"] == 1
        await pair.cancel(queued, num_left=2)
        await pair.cancel(victim, num_left=1)
        assert await other == expected


async def test_cancelling_in_prefill_frees_everything(
    models: Models, expected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_pair(models, folder, monkeypatch) as pair:
        pair.passes.close(lambda packed: len(packed.lengths) - packed.num_blocks == 2)
        other, victim = pair.start(OTHER), pair.start(VICTIM)
        await until(lambda: pair.passes.is_reached)
        await pair.cancel(victim, num_left=1)
        assert await other == expected


async def test_cancelling_while_a_draft_is_awaited_frees_everything(
    models: Models, expected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_pair(models, folder, monkeypatch) as pair:
        pair.drafts.close(lambda blocks: len(blocks) == 2)
        other, victim = pair.start(OTHER), pair.start(VICTIM)
        await until(lambda: pair.drafts.is_reached)
        await pair.cancel(victim, num_left=1)
        assert pair.num_requests == 1, "the other still waits for its draft"
        pair.drafts.open()
        assert await other == expected


async def test_cancelling_while_a_block_is_verified_frees_everything(
    models: Models, expected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_pair(models, folder, monkeypatch) as pair:
        pair.passes.close(lambda packed: packed.lengths[: packed.num_blocks] == [16, 16])
        other, victim = pair.start(OTHER), pair.start(VICTIM)
        await until(lambda: pair.passes.is_reached)
        await pair.cancel(victim, num_left=1)
        assert await other == expected


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
async def test_cancelling_between_two_items_of_the_stream_frees_everything(
    models: Models, expected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """By closing the stream, or in whatever else its consumer awaits meanwhile."""
    async with running_pair(models, folder, monkeypatch) as pair:
        has_item = asyncio.Event()

        async def consume() -> list[int]:
            async for _ in pair.verifier.generate(VICTIM):
                has_item.set()
                await asyncio.Event().wait()
            return []

        other = pair.start(OTHER)
        if closes:
            stream = pair.verifier.generate(VICTIM)
            await anext(stream)
            await stream.aclose()
        else:
            victim = asyncio.create_task(consume())
            await has_item.wait()
            victim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await victim
        assert await other == expected
