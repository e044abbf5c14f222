from __future__ import annotations

from random import Random

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.verifier import Job, SimulatedVerifier, VerifierLimits
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions

LIMITS = VerifierLimits(pool_tokens=20_000, max_checkpoints=50)


class Run:
    """A verifier, and what it has served."""

    def __init__(self, limits: VerifierLimits = LIMITS) -> None:
        self.simulation = Simulation()
        self.verifier = SimulatedVerifier(self.simulation, limits, CostModel(), Random(0))
        self.first_s: dict[str, float] = {}
        self.cached: dict[str, int] = {}

    def submit(self, uid: str, prompt: range, num_output: int = 40) -> None:
        arrived_s = self.simulation.now_s
        request = GenerateRequest(uid, tuple(prompt), SamplingParams(), StopConditions(max_tokens=num_output))
        output = tuple(range(10**6, 10**6 + num_output))

        def on_first() -> None:
            self.first_s[uid] = self.simulation.now_s - arrived_s

        def on_end(cached: int) -> None:
            self.cached[uid] = cached

        self.verifier.submit(Job(uid, request, output, on_first, on_end))


def test_a_second_request_with_the_same_prompt_is_warm_and_faster() -> None:
    run = Run()
    run.submit("cold", range(4000))
    run.simulation.run()
    run.submit("warm", range(4000))
    run.simulation.run()
    assert run.cached["cold"] == 0
    assert run.cached["warm"] >= 4000 - 64
    assert run.first_s["warm"] < run.first_s["cold"] / 3


@pytest.mark.parametrize("max_checkpoints", [0, 50])
def test_more_than_fits_is_served_in_turn_and_leaves_nothing_held(max_checkpoints: int) -> None:
    run = Run(VerifierLimits(pool_tokens=6_000, max_checkpoints=max_checkpoints, max_running_requests=8))
    for number in range(30):
        run.submit(str(number), range(number * 5000, number * 5000 + 1500), num_output=200)
    assert run.verifier.num_requests == 30
    run.simulation.run()
    assert len(run.cached) == len(run.first_s) == 30
    assert run.verifier.num_requests == 0
    index = run.verifier.index
    index.check_integrity()
    assert index.num_available == index.pool.num_pages
    assert index.num_evicted_pages > 0
    assert run.verifier.load().cache_lifetime_s > 0


def test_its_load_counts_what_has_still_to_be_prefilled() -> None:
    run = Run()
    run.submit("first", range(3000))
    assert run.verifier.load().queued_tokens == 3000
    run.submit("second", range(10_000, 12_000))
    load = run.verifier.load()
    assert (load.running_requests, load.waiting_requests, load.queued_tokens) == (1, 1, 5000)
    assert run.verifier.take_admitted() == ["first", "second"]
    assert run.verifier.take_admitted() == []
    run.simulation.run()
    assert run.verifier.load().queued_tokens == 0


def test_it_publishes_prefixes_that_a_request_can_resume_from() -> None:
    run = Run()
    run.submit("r", range(1000))
    run.simulation.run()
    added, removed = run.verifier.index.events.take()
    assert (len(added), len(removed)) == (1, 0)
