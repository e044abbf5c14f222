from __future__ import annotations

from math import inf

from dspine_cluster.core.cluster_records import IDLE, ReplicaDelta, coarse


def test_coarse_figures_hide_small_changes() -> None:
    assert coarse(1234.5) == coarse(1150.1) == 1200.0
    assert coarse(0.0) == 0.0
    assert coarse(inf) == inf


def test_a_delta_has_changes_when_it_says_more_than_a_load() -> None:
    assert not ReplicaDelta("v", "e", 1, IDLE).has_changes
    assert ReplicaDelta("v", "e", 1, IDLE, added=(b"a",)).has_changes
    assert ReplicaDelta("v", "e", 1, IDLE, removed=(b"a",)).has_changes
    assert ReplicaDelta("v", "e", 1, IDLE, admitted=("r",)).has_changes
    assert ReplicaDelta("v", "e", 1, IDLE, is_snapshot=True).has_changes
