from __future__ import annotations

from random import Random

import pytest

from dspine_cluster.sim.cluster import POLICIES, ClusterSettings, Served, SimulatedCluster
from dspine_cluster.sim.conversations import ConversationSettings, make_conversations
from dspine_cluster.sim.verifier import VerifierLimits

UNTIL_S = 30.0
TRACE = make_conversations(ConversationSettings(conversations_per_s=1.5, duration_s=UNTIL_S), Random(5))


def run(policy: str) -> SimulatedCluster:
    limits = VerifierLimits(pool_tokens=100_000, max_checkpoints=100)
    cluster = SimulatedCluster(ClusterSettings(num_verifiers=4, limits=limits), policy)
    cluster.run(TRACE, UNTIL_S)
    return cluster


def cached_ratio(served: list[Served]) -> float:
    return sum(s.cached_tokens for s in served) / sum(s.prompt_tokens for s in served)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_that_arrives_is_served_and_nothing_is_left(policy: str) -> None:
    cluster = run(policy)
    assert len(cluster.served) >= len(TRACE)
    assert all(served.ttft_s > 0 and served.arrived_s < UNTIL_S for served in cluster.served)
    for verifier in cluster.verifiers:
        verifier.index.check_integrity()
        assert verifier.num_requests == 0
        assert verifier.index.num_available == verifier.index.pool.num_pages


def test_a_run_is_repeatable() -> None:
    assert run("joint").served == run("joint").served


def test_joint_placement_finds_more_in_the_caches_than_those_who_do_not_look() -> None:
    joint, blind = cached_ratio(run("joint").served), cached_ratio(run("power_of_two").served)
    assert joint > 1.3 * blind


def test_round_robin_gives_everyone_as_much() -> None:
    counts = [sum(s.verifier == number for s in run("round_robin").served) for number in range(4)]
    assert max(counts) - min(counts) <= 1
