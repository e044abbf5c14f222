from __future__ import annotations

from dataclasses import replace

from dspine_cluster.core.autoscaling_stats import RoundCurve, VerifierStats
from dspine_serve.leaving import Leaving

ONE = VerifierStats(
    "one",
    0.0,
    RoundCurve((1, 4), (0.02, 0.02)),
    4,
    committed_tokens_per_s=100.0,
    running_tokens=900.0,
    waiting_tokens=100.0,
)
OTHER = replace(ONE, replica_id="other")


def test_who_leaves_goes_on_at_its_pace_until_it_is_done() -> None:
    leaving = Leaving()
    assert leaving.update([ONE, OTHER], 0.0) == []
    assert leaving.update([OTHER], 1.0) == [
        replace(ONE, running_tokens=1000.0, waiting_tokens=0.0, is_draining=True)
    ]
    [half] = leaving.update([OTHER], 6.0)
    assert half.running_tokens == 500.0
    assert leaving.update([OTHER], 11.0) == []
    assert leaving.update([OTHER], 12.0) == []


def test_who_comes_back_does_not_leave() -> None:
    leaving = Leaving()
    leaving.update([ONE], 0.0)
    leaving.update([], 1.0)
    assert leaving.update([ONE], 2.0) == []


def test_who_never_gets_done_is_forgotten_after_a_while() -> None:
    leaving = Leaving()
    leaving.update([replace(ONE, committed_tokens_per_s=0.0)], 0.0)
    assert leaving.update([], 1.0)
    assert leaving.update([], 70.0) == []
