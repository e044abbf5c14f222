"""A drafter replica serves the miniature over sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.config import DrafterServiceConfig, parse_config
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.drafter.service import DrafterService, num_pool_pages
from dspine_cluster.errors import ChannelClosedError, ChannelError, ConfigError, EngineStoppedError
from dspine_cluster.models.drafter_weights import read_drafter_config
from dspine_cluster.observability import catalogue
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import Close, Message, Need, Open, Opened, Proposals, join_keys
from dspine_cluster.transport.socket import connect, parse_endpoint
from tests.drafter.harness import DRAFTER, VERIFIER, assert_proposals, features_of, item_of
from tests.drafts import draft_of
from tests.models.drafter_cases import random_block, random_drafter, small_config

SECRET = "a secret of an application"
KEYS = [bytes([number]) * 16 for number in range(3)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="dspine") as path:
        yield Path(path)


@pytest.fixture
def config(folder: Path) -> DrafterServiceConfig:
    return DrafterServiceConfig(
        endpoints=(f"unix:{folder}/drafter", "tcp:127.0.0.1:0"),
        secret=SECRET,
        pool_tokens=8192,
        max_context_tokens=1024,
    )


@pytest.fixture
def start(config: DrafterServiceConfig) -> Iterator[Callable[[], DrafterService]]:
    services: list[DrafterService] = []

    def make() -> DrafterService:
        service = DrafterService(config, random_drafter(small_config()), DRAFTER)
        services.append(service)
        service.start()
        return service

    yield make
    for service in services:
        service.stop()


def open_channel(endpoint: str) -> Channel:
    return connect(parse_endpoint(endpoint), VERIFIER, SECRET.encode(), timeout_s=5.0)


def ask(channel: Channel, *messages: Message) -> Message:
    """The answer to the messages."""
    ready = threading.Event()
    channel.set_ready_callback(ready.set)
    for message in messages:
        assert channel.send(message)
    while True:
        assert ready.wait(10.0), "no answer came"
        ready.clear()
        for answer in channel.receive():
            if not isinstance(answer, Opened):
                return answer


@pytest.mark.parametrize("number", [0, 1])
def test_each_endpoint_answers_drafts(start: Callable[[], DrafterService], number: int) -> None:
    service = start()
    channel = open_channel(service.endpoints[number])
    assert channel.peer == DRAFTER
    drafter = random_drafter(small_config())
    block = random_block(drafter.config, 50)
    proposals = ask(channel, Open(1), features_of(block, 1, 0, 50), draft_of([item_of(block, 1)]))
    assert isinstance(proposals, Proposals)
    assert_proposals(proposals, 0, drafter, block, item_of(block, 1))
    stats = service.stats()
    assert (stats["drafter_channels"], stats["drafter_requests"], stats["drafter_blocks_total"]) == (1, 1, 1)
    assert 0.0 < stats["drafter_page_usage_ratio"] < 0.1
    service.check_health()
    channel.close()


def test_the_catalogue_has_exactly_the_figures_of_a_drafter(start: Callable[[], DrafterService]) -> None:
    assert set(start().stats()) == {name for metric in catalogue.DRAFTER for name in metric.figure_names}


def test_many_verifiers_are_served_at_the_same_time(start: Callable[[], DrafterService]) -> None:
    service = start()
    drafter = random_drafter(small_config())
    failures: list[BaseException] = []

    def serve(number: int) -> None:
        try:
            channel = open_channel(service.endpoints[number % 2])
            for uid in range(5):
                block = random_block(drafter.config, 20 + uid, seed=number)
                answer = ask(
                    channel, Open(uid), features_of(block, uid, 0, 20 + uid), draft_of([item_of(block, uid)])
                )
                assert isinstance(answer, Proposals)
                assert_proposals(answer, 0, drafter, block, item_of(block, uid))
                channel.send(Close(uid))
            channel.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert service.stats()["drafter_blocks_total"] == 30


def test_stopping_ends_channels_and_health_and_frees_the_endpoints(
    start: Callable[[], DrafterService], folder: Path
) -> None:
    service = start()
    channel = open_channel(service.endpoints[0])
    service.stop()
    ready = threading.Event()
    channel.set_ready_callback(ready.set)
    assert ready.wait(10.0)
    with pytest.raises(ChannelClosedError):
        channel.receive()
    with pytest.raises(EngineStoppedError):
        service.check_health()
    assert list(folder.iterdir()) == []
    again = start()
    item = item_of(random_block(small_config(), 5), 1)
    assert ask(open_channel(again.endpoints[0]), Open(1), draft_of([item])) == Need(1, 0, 5)


def test_an_endpoint_that_cannot_be_had_stops_everything(
    start: Callable[[], DrafterService], config: DrafterServiceConfig
) -> None:
    start()
    second = DrafterService(config, random_drafter(small_config()), DRAFTER)
    with pytest.raises(ChannelError, match="another process"):
        second.start()
    with pytest.raises(EngineStoppedError):
        second.check_health()


def test_the_built_in_pair_is_loaded_and_drafts(config: DrafterServiceConfig) -> None:
    service = DrafterService.load(replace(config, endpoints=config.endpoints[:1]))
    service.start()
    try:
        channel = open_channel(service.endpoints[0])
        assert len({channel.peer.target, channel.peer.drafter, channel.peer.tokenizer}) == 3
        shape = read_drafter_config(miniature.folder("dspine"))
        block = random_block(shape, 30)
        item = item_of(block, 1, num_proposals=shape.num_proposals, temperature=1.0)
        answer = ask(channel, Open(1), features_of(block, 1, 0, 30), draft_of([item]))
        assert isinstance(answer, Proposals)
        assert answer.tokens.shape == (1, shape.num_proposals)
        channel.close()
    finally:
        service.stop()


def test_a_pool_too_small_for_one_context_is_refused(config: DrafterServiceConfig) -> None:
    drafter = random_drafter(small_config())
    assert num_pool_pages(replace(config, pool_tokens=1040), drafter) == 65
    with pytest.raises(ConfigError, match="max_context_tokens"):
        num_pool_pages(replace(config, pool_tokens=1039), drafter)
    with pytest.raises(ConfigError, match="memory_fraction"):
        num_pool_pages(replace(config, pool_tokens=None, memory_fraction=1e-9), drafter)


def test_the_pool_takes_its_share_of_the_free_memory(
    config: DrafterServiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter(small_config())
    page_bytes = 2 * 3 * 16 * 2 * 8 * 4

    def free_bytes(device: torch.device) -> int:
        return 1000 * page_bytes

    monkeypatch.setattr("dspine_cluster.drafter.service.free_bytes", free_bytes)
    assert num_pool_pages(replace(config, pool_tokens=None, memory_fraction=0.5), drafter) == 500


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoints": []},
        {"max_context_tokens": 0},
        {"memory_fraction": 0.0},
        {"max_batch_blocks": 0},
        {"max_queued_blocks": 1},
        {"surplus": 1},
    ],
)
def test_impossible_configurations_are_refused_by_key(changes: dict[str, object]) -> None:
    (key,) = changes
    with pytest.raises(ConfigError, match=key):
        parse_config(DrafterServiceConfig, {"endpoints": ["tcp:127.0.0.1:0"], **changes})


def test_a_report_tells_open_requests_and_an_end(start: Callable[[], DrafterService]) -> None:
    service = start()
    assert service.take_report().load == ReplicaLoad()
    channel = open_channel(service.endpoints[0])
    block = random_block(small_config(), 50)
    ask(channel, Open(1, join_keys(KEYS)), features_of(block, 1, 0, 50), draft_of([item_of(block, 1)]))
    report = service.take_report()
    assert report.load.running_requests == 1
    added = set(report.added)
    deadline_s = time.monotonic() + 60.0
    while added != set(KEYS):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
        added |= service.take_report().added
    channel.close()
    service.stop()
    with pytest.raises(EngineStoppedError):
        service.take_report()
