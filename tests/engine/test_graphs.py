"""When work is done, recorded and replayed; the GPU is played by a fake that records calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from dspine_cluster.engine import graphs
from dspine_cluster.engine.graphs import GraphCache, can_record

CPU = torch.device("cpu")


class FakeGraph:
    """Counts its replays."""

    def __init__(self) -> None:
        self.num_replays = 0
        FakeCuda.graphs.append(self)

    def replay(self) -> None:
        self.num_replays += 1


class FakeCuda:
    """Recording calls the work once more, takes 10 bytes, and fails on demand."""

    graphs: list[FakeGraph]
    is_recording = False
    reserved_bytes = 0
    fails = False

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> type[FakeCuda]:
        cls.graphs, cls.is_recording, cls.reserved_bytes, cls.fails = [], False, 0, False
        monkeypatch.setattr(graphs, "can_record", lambda device: True)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (1, 1))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: cls.reserved_bytes)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
        monkeypatch.setattr(torch.cuda, "graph", cls.graph)
        return cls

    @classmethod
    @contextmanager
    def graph(cls, graph: FakeGraph, *, pool: object, capture_error_mode: str) -> Iterator[None]:
        cls.is_recording = True
        yield
        cls.is_recording = False
        if cls.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        cls.reserved_bytes += 10


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> type[FakeCuda]:
    return FakeCuda.install(monkeypatch)


def work() -> str:
    return "recorded" if FakeCuda.is_recording else "done"


def test_a_cpu_records_nothing_and_does_the_work_each_time() -> None:
    assert not can_record(CPU)
    cache: GraphCache[str, int] = GraphCache(CPU)
    numbers = iter(range(3))
    assert [cache.run("a", lambda: next(numbers)) for _ in range(3)] == [0, 1, 2]
    assert not cache.is_recorded("a")


def test_work_is_done_and_recorded_at_first_and_replayed_from_then_on(cuda: type[FakeCuda]) -> None:
    cache: GraphCache[str, str] = GraphCache(CPU)
    assert cache.run("a", work) == "done"
    assert cache.is_recorded("a")
    assert [cache.run("a", pytest.fail) for _ in range(2)] == ["recorded", "recorded"]
    assert [graph.num_replays for graph in cuda.graphs] == [2]


def test_every_key_is_recorded_of_its_own(cuda: type[FakeCuda]) -> None:
    cache: GraphCache[str, str] = GraphCache(CPU)
    for key in ("a", "b", "b"):
        cache.run(key, work)
    assert [graph.num_replays for graph in cuda.graphs] == [0, 1]


def test_nothing_more_is_recorded_beyond_the_limit(cuda: type[FakeCuda]) -> None:
    cache: GraphCache[str, str] = GraphCache(CPU, limit_bytes=15)
    for key in ("a", "b", "c", "c"):
        cache.run(key, work)
    assert [cache.is_recorded(key) for key in "abc"] == [True, True, False]
    assert cache.run("c", work) == "done"


def test_work_that_cannot_be_recorded_is_done_all_the_same(
    cuda: type[FakeCuda], caplog: pytest.LogCaptureFixture
) -> None:
    cache: GraphCache[str, str] = GraphCache(CPU)
    cuda.fails = True
    assert [cache.run("a", work) for _ in range(2)] == ["done", "done"]
    assert len(cuda.graphs) == 1
    assert "not permitted" in caplog.text
