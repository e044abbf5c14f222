"""What a loop says of its load, while it runs."""

from __future__ import annotations

from math import inf

import pytest

from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.models.target import TargetModel
from tests.verifier.harness import LoopHarness, dense_config, make_request, random_target, time_passes

PROMPT = [token % 250 for token in range(150)]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(dense_config(), seed=1)


def test_an_idle_loop_has_no_load(target: TargetModel) -> None:
    assert LoopHarness(target).loop.load() == ReplicaLoad()


def test_queued_tokens_are_those_still_to_be_prefilled(target: TargetModel) -> None:
    harness = LoopHarness(target, max_running_requests=1)
    for uid in range(2):
        harness.submit(uid, make_request(PROMPT))
    assert harness.loop.load().queued_tokens == 300
    harness.step()
    load = harness.loop.load()
    assert (load.running_requests, load.waiting_requests, load.queued_tokens) == (1, 1, 150 - 64 + 150)


def test_cached_tokens_are_left_out(target: TargetModel) -> None:
    harness = LoopHarness(target)
    harness.generate([make_request(PROMPT, max_tokens=2)])
    harness.submit(1, make_request(PROMPT))
    assert harness.loop.load().queued_tokens == 150 - 144


def test_what_ends_waits_no_more(target: TargetModel) -> None:
    harness = LoopHarness(target, max_running_requests=1)
    for uid in range(2):
        harness.submit(uid, make_request(PROMPT))
    harness.step()
    for uid in range(2):
        harness.loop.abort(uid)
    load = harness.loop.load()
    assert (load.running_requests, load.waiting_requests, load.queued_tokens) == (0, 0, 0)


def test_the_prefill_rate_is_measured(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LoopHarness(target)
    time_passes(monkeypatch, harness, lambda num_tokens: num_tokens / 1000)
    harness.generate([make_request(PROMPT, max_tokens=2)])
    assert harness.loop.load().prefill_tokens_per_s == 1000.0


def test_a_cache_that_evicts_keeps_things_for_a_finite_time(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LoopHarness(target, pool_tokens=512)
    time_passes(monkeypatch, harness, lambda num_tokens: 0.1)
    lifetimes = []
    for number in range(8):
        harness.generate([make_request([number, *PROMPT], max_tokens=2)])
        lifetimes.append(harness.loop.load().cache_lifetime_s)
    assert lifetimes[0] == inf
    assert 0.0 < lifetimes[-1] < 100.0
