"""Whatever happens to requests, pages, states and slots in use are exactly those of running and cached ones, and nobody
reads what is not its own prefix."""

from __future__ import annotations

from collections import Counter

import pytest

from dspine_cluster.core.page_pool import PagePool
from tests.verifier.shadow import RandomStreams

NUM_STEPS = 2_500
SEEDS = range(3)


@pytest.mark.parametrize("has_states", [True, False], ids=["hybrid", "dense"])
def test_fifteen_thousand_random_steps_keep_every_invariant(has_states: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        streams = RandomStreams(seed, has_states=has_states)
        for _ in range(NUM_STEPS):
            streams.step()
        counts += streams.counts
        counts["evicted pages"] += streams.index.num_evicted_pages
        counts["evicted checkpoints"] += streams.index.num_evicted_checkpoints
        streams.drain()
        streams.check()
        assert streams.index.num_available == streams.index.pool.num_pages
        assert streams.streams.num_free_slots == 4
    always = [
        "arrivals",
        "chunks",
        "accepted",
        "ends",
        "aborts",
        "evictions",
        "preemptions",
        "drafter losses",
    ]
    hybrid = ["tail copies", "evicted checkpoints"] if has_states else []
    for kind in [*always, "cached tokens", "evicted pages", *hybrid]:
        assert counts[kind] > 50, f"{kind} hardly ever happened"


@pytest.mark.parametrize("has_states", [True, False], ids=["hybrid", "dense"])
def test_cached_pages_are_given_up_for_running_requests(has_states: bool) -> None:
    streams = RandomStreams(1, has_states=has_states)
    for _ in range(300):
        streams.step()
    streams.drain()
    cached = streams.index.num_cached_pages
    assert cached > 0
    pages = streams.index.allocate(streams.index.pool.num_pages)
    assert len(pages) == PagePool(60).num_pages
    assert streams.index.num_cached_pages == 0
    assert not streams.index.events.present
