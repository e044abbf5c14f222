from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_drafters import (
    Speculation,
    Wanted,
    needed_drafters,
    speculation_gain,
    update_speculation,
)
from dspine_cluster.core.autoscaling_stats import DrafterStats, RoundCurve, VerifierStats

CONFIG = AutoscalingConfig(probe_after_s=100.0, probe_s=10.0)
CURVE = RoundCurve((1, 2), (0.02, 0.03))
BUSY = VerifierStats("v", 0.0, CURVE, max_requests=64, running_requests=8, speculation_gain=2.0, round_s=0.04)
POOR = replace(BUSY, speculation_gain=0.9)


def want(busy: float, num_drafters: int = 2, queue_s: float = 0.0, **changes: int) -> Wanted:
    settings = {"num_drafters": num_drafters, "num_verifiers": 4, "num_serving": 4} | changes
    drafters = [DrafterStats("d", 0.0, busy) for _ in range(num_drafters)]
    verifiers = [replace(BUSY, draft_queue_s=queue_s)] * 4
    return needed_drafters(Speculation(), verifiers, drafters, config=CONFIG, **settings)


def test_drafters_are_as_many_as_their_busy_time_needs() -> None:
    assert want(0.6).replicas == pytest.approx(2)
    assert want(0.9).replicas == pytest.approx(3)


def test_those_that_tell_nothing_are_as_busy_as_the_others() -> None:
    drafters = [DrafterStats("d", 0.0, 0.6)]
    wanted = needed_drafters(
        Speculation(), [BUSY], drafters, num_drafters=3, num_verifiers=1, num_serving=1, config=CONFIG
    )
    assert wanted.replicas == pytest.approx(3)


def test_drafters_grow_with_the_verifiers_that_are_to_come() -> None:
    assert want(0.6, num_verifiers=8).replicas == pytest.approx(4)


def test_waiting_for_drafts_adds_one() -> None:
    wanted = want(0.3, queue_s=0.01)
    assert wanted.replicas == 3
    assert "25 % of rounds" in wanted.reason


def test_without_verifiers_there_is_nothing_to_draft_for() -> None:
    assert want(0.6, num_verifiers=0).replicas == 0


def test_the_gain_is_weighed_by_requests() -> None:
    assert speculation_gain([BUSY, replace(POOR, running_requests=24)]) == pytest.approx(1.175)
    assert speculation_gain([replace(POOR, running_requests=0)]) == 1.0


def test_verifiers_that_know_nothing_of_drafts_have_no_say_beside_those_that_do() -> None:
    unknown = replace(BUSY, speculation_gain=inf)
    assert speculation_gain([unknown, POOR]) == POOR.speculation_gain
    assert speculation_gain([unknown]) == inf


def test_drafting_stops_when_it_has_not_paid_for_a_while_and_not_sooner() -> None:
    speculation = update_speculation(Speculation(), [POOR], 0.0, CONFIG)
    assert update_speculation(speculation, [POOR], 9.0, CONFIG).is_on
    assert not update_speculation(speculation, [POOR], 10.0, CONFIG).is_on
    recovered = update_speculation(speculation, [BUSY], 9.0, CONFIG)
    assert update_speculation(recovered, [POOR], 10.0, CONFIG).is_on


def test_probes_get_rarer_while_they_are_in_vain() -> None:
    speculation, starts = Speculation(), []
    for now in range(5000):
        before = speculation.is_on
        speculation = update_speculation(speculation, [POOR], float(now), CONFIG)
        if speculation.is_on and not before:
            starts.append(now)
    gaps = [b - a for a, b in pairwise(starts)]
    assert gaps[:3] == [211, 411, 811]


def test_a_probe_that_pays_turns_drafting_on() -> None:
    speculation = update_speculation(Speculation(is_on=False), [BUSY], 100.0, CONFIG)
    assert speculation.is_probe
    for now in range(101, 111):
        speculation = update_speculation(speculation, [BUSY], float(now), CONFIG)
    assert speculation.is_on
    assert not speculation.is_probe
