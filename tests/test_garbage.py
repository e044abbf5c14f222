from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dspine_cluster.garbage import collect_rarely


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that are collected; everything is as it was afterwards."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_the_objects_of_many_rounds_start_no_collection(collections: list[int]) -> None:
    collect_rarely()
    kept: list[list[int]] = []
    for _ in range(30):
        kept = [[0] for _ in range(4_000)]
    assert len(kept) == 4_000
    assert collections == []


def test_what_gathers_is_collected_in_the_end(collections: list[int]) -> None:
    collect_rarely()
    kept = [[0] for _ in range(60_000)]
    assert len(kept) == 60_000
    assert collections
