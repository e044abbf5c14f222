from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.pairing import pair


def verifiers(count: int) -> list[Any]:
    return [SimpleNamespace(name=f"verifier-{number}", drafter=None) for number in range(count)]


def test_verifiers_are_spread_evenly() -> None:
    replicas, drafters = verifiers(5), [SimulatedDrafter("a"), SimulatedDrafter("b")]
    pair(replicas, drafters)
    assert sorted(drafter.num_verifiers for drafter in drafters) == [2, 3]


def test_a_new_drafter_takes_no_more_than_its_share() -> None:
    replicas, first = verifiers(4), SimulatedDrafter("first")
    pair(replicas, [first])
    second = SimulatedDrafter("second")
    pair(replicas, [first, second])
    assert [replica.drafter for replica in replicas] == [first, first, second, second]


def test_without_drafters_nobody_has_one() -> None:
    replicas, gone = verifiers(2), SimulatedDrafter("gone")
    pair(replicas, [gone])
    pair(replicas, [])
    assert [replica.drafter for replica in replicas] == [None, None]
