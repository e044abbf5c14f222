"""Whatever happens to requests, pages, states and slots in use are exactly those of running and cached ones, and nobody
reads what is not its own prefix."""

from __future__ import annotations

from collections import Counter

import pytest

from dspine_cluster.core.batch_plan import BatchPlan, ChunkPlan
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.resume import COLD_START
from dspine_cluster.core.session import Session
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from tests.verifier.shadow import RandomStreams, make_stream

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


def decode(session: Session, num_rounds: int) -> None:
    for _ in range(num_rounds):
        session.commit_round([5, 5], num_proposed=1, num_verified=1, num_accepted=1)


def test_whoever_waits_is_served_by_all_that_was_computed_for_each_client() -> None:
    """The output of requests that decode while nobody waits counts as well, and so does what they had before they gave
    way."""
    streams = RandomStreams(0, has_states=False).streams
    shares = streams.waiting.shares

    def add(uid: int, client: str) -> Session:
        stream = make_stream(
            uid, GenerateRequest(str(uid), (1,) * 20, SamplingParams(), StopConditions(500), client=client)
        )
        streams.add(stream)
        return stream.session

    session = add(0, "busy")
    streams.apply(BatchPlan(chunks=[ChunkPlan(session, 20, num_new_pages=20, resume=COLD_START)]))
    session.advance_prefill(20)
    streams.commit_first(session, 5)
    decode(session, 3)
    add(1, "new")
    assert shares.served("busy") - shares.served("new") == 1 + 6
    decode(session, 2)
    streams.note_committed()
    decode(session, 1)
    streams.apply(BatchPlan(preempted=[session]))
    assert shares.served("busy") - shares.served("new") == 1 + 12
    streams.remove(0, keep_state=False)
    assert shares.served("busy") - shares.served("new") == 1 + 12


def test_requests_that_decode_together_again_after_they_gave_way_have_the_slots_of_now() -> None:
    streams = RandomStreams(0, has_states=False).streams

    def admit(session: Session) -> None:
        num_tokens = len(session.tokens)
        streams.apply(BatchPlan(chunks=[ChunkPlan(session, num_tokens, num_new_pages=20, resume=COLD_START)]))
        session.advance_prefill(num_tokens)
        streams.commit_first(session, 5)

    sessions = []
    for uid in range(2):
        request = GenerateRequest(str(uid), (1,) * 20, SamplingParams(), StopConditions(500))
        streams.add(stream := make_stream(uid, request))
        admit(stream.session)
        sessions.append(stream.session)
    before = streams.cohort([0, 1])
    assert streams.cohort([0, 1]) is before
    streams.apply(BatchPlan(preempted=sessions))
    for session in sessions:
        admit(session)
    slots = [session.state_slot for session in sessions]
    assert streams.cohort([0, 1]).state_slots == slots != before.state_slots
