from __future__ import annotations

import pytest

from dspine_cluster.sim.drafters import SimulatedDrafter


def test_batches_are_drafted_one_after_the_other() -> None:
    drafter = SimulatedDrafter("d")
    assert drafter.ask(1.0, 0.5) == pytest.approx(0.5)
    assert drafter.ask(1.2, 0.5) == pytest.approx(0.8)
    stats = drafter.observe(2.0, by_load=False)
    assert stats.busy_ratio == pytest.approx(0.5)
    assert stats.queue_s == pytest.approx(0.15)


def test_a_queue_that_is_worked_out_is_like_one_that_is_simulated() -> None:
    """Verifiers of different pace, each waiting for its own batch."""
    draft_s, simulated, worked_out = 0.004, SimulatedDrafter("a"), SimulatedDrafter("b")
    passes_s = [0.016, 0.017, 0.019, 0.0203]
    at_s = [0.0, 0.003, 0.007, 0.011]
    while min(at_s) < 60.0:
        i = at_s.index(min(at_s))
        at_s[i] += simulated.ask(at_s[i], draft_s) + passes_s[i]
    for _ in range(30):
        for i, pass_s in enumerate(passes_s):
            worked_out.set_load(str(i), draft_s, pass_s + draft_s + worked_out.expected_wait_s)
        worked_out.update_wait()
    real, guess = simulated.observe(60.0, by_load=False), worked_out.observe(60.0, by_load=True)
    assert guess.busy_ratio == pytest.approx(real.busy_ratio, rel=0.05)
    assert guess.queue_s == pytest.approx(real.queue_s, abs=0.001)


def test_who_is_gone_is_no_load() -> None:
    drafter = SimulatedDrafter("d")
    drafter.set_load("v", 0.01, 0.02)
    assert drafter.load == 0.5
    drafter.forget("v")
    assert drafter.load == 0.0
