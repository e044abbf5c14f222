from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.capacity_estimate import CapacityEstimate, Rates
from dspine_cluster.core.verifier_meter import PresentLoad, RoundTotals, VerifierMeter

LOAD = PresentLoad(4, 100.0, 50.0, 64, 0.2, 1000.0, has_drafters=True, wants_drafts=True)
ROUND_S = 0.05


def estimate(sizes: tuple[int, ...]) -> CapacityEstimate:
    return CapacityEstimate(tuple(Rates(20.0 * size, 50.0 * size) for size in sizes), 0.001)


def unknown(sizes: tuple[int, ...]) -> None:
    return None


class Rounds:
    """Rounds of `ROUND_S` that commit three tokens for each of so many requests."""

    def __init__(self) -> None:
        self.meter = VerifierMeter(16)
        self.now_s = 100.0
        self.totals = RoundTotals(0, 0, 0.0)

    def run(self, seconds: float, num_requests: int, queue_s: float = 0.0, num_prefilled: int = 0) -> None:
        for _ in range(round(seconds / ROUND_S)):
            self.meter.advance(self.now_s, num_requests)
            self.now_s += ROUND_S
            self.meter.note_pass(num_prefilled, 0)
            self.totals = RoundTotals(
                self.totals.rounds + num_requests,
                self.totals.committed_tokens + 3 * num_requests,
                self.totals.draft_queue_s + queue_s * num_requests,
            )
        self.meter.advance(self.now_s, num_requests)

    def add_plain(self, count: int) -> None:
        """Rounds of single requests that take no time here and commit one token."""
        so_far = self.totals
        self.totals = replace(
            so_far, rounds=so_far.rounds + count, committed_tokens=so_far.committed_tokens + count
        )

    def look(self) -> None:
        """What happens from now on counts by itself."""
        self.meter.stats(self.now_s, self.totals, LOAD, estimate)

    def stats(self, load: PresentLoad = LOAD) -> VerifierStats:
        stats = self.meter.stats(self.now_s, self.totals, load, estimate)
        assert stats is not None
        return stats


def test_there_is_nothing_to_tell_before_a_round_whose_costs_are_unknown() -> None:
    meter = VerifierMeter(16)
    assert meter.stats(1.0, RoundTotals(0, 0, 0.0), LOAD, unknown) is None


def test_the_first_rounds_tell_nothing_yet() -> None:
    rounds = Rounds()
    rounds.run(15 * ROUND_S, 1)
    assert rounds.meter.stats(rounds.now_s, rounds.totals, LOAD, estimate) is None
    rounds.run(ROUND_S, 1)
    assert rounds.stats().acceptance_length == pytest.approx(3)


def test_rounds_are_measured_by_requests_and_their_time() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(4.0, 8)
    stats = rounds.stats()
    assert stats.round_s == pytest.approx(ROUND_S)
    assert stats.running_requests == pytest.approx(8)
    assert stats.acceptance_length == pytest.approx(3)
    assert stats.committed_tokens_per_s == pytest.approx(8 * 3 / ROUND_S)


def test_time_in_which_the_machine_stood_still_does_not_count() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(4.0, 8)
    rounds.now_s += 90.0
    rounds.run(2.0, 8)
    stats = rounds.stats()
    assert stats.round_s < 2 * ROUND_S
    assert stats.committed_tokens_per_s > 8 * 3 / ROUND_S / 2


def test_idle_time_counts_for_rates_but_not_for_rounds() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(2.0, 8)
    rounds.meter.advance(rounds.now_s, 0)
    rounds.now_s += 2.0
    stats = rounds.stats()
    assert stats.round_s == pytest.approx(ROUND_S)
    assert stats.running_requests == pytest.approx(8)
    assert stats.committed_tokens_per_s == pytest.approx(4 * 3 / ROUND_S)


def test_figures_are_of_the_last_seconds() -> None:
    rounds = Rounds()
    for num_requests in (16, 16, 16, 2, 2, 2, 2, 2, 2):
        rounds.look()
        rounds.run(1.0, num_requests)
    assert rounds.stats().running_requests == pytest.approx(2)


def test_an_idle_verifier_keeps_its_acceptance_length() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(1.0, 4)
    rounds.look()
    rounds.meter.advance(rounds.now_s, 0)
    rounds.now_s += 60.0
    rounds.look()
    rounds.now_s += 60.0
    stats = rounds.stats(replace(LOAD, running_requests=0))
    assert (stats.committed_tokens_per_s, stats.round_s) == (0.0, 0.0)
    assert stats.acceptance_length == pytest.approx(3)


def test_the_curve_says_what_the_estimate_does_about_tokens() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(1.0, 4)
    stats = rounds.stats()
    for size in (1, 4, 16):
        assert size * stats.acceptance_length / stats.curve.at(size) == pytest.approx(50.0 * size)
    assert stats.speculation_gain == pytest.approx(2.5)


def test_without_drafters_plain_decoding_is_what_a_verifier_bears() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(1.0, 4)
    stats = rounds.stats(replace(LOAD, has_drafters=False))
    assert 4 * stats.acceptance_length / stats.curve.at(4) == pytest.approx(80.0)


def test_where_costs_are_unknown_the_curve_goes_through_what_was_measured() -> None:
    rounds = Rounds()
    for _ in range(20):
        rounds.run(1.0, 8)
        stats = rounds.meter.stats(rounds.now_s, rounds.totals, LOAD, unknown)
    assert stats is not None
    assert stats.curve.at(8) == pytest.approx(ROUND_S, rel=0.1)
    assert stats.speculation_gain == inf


def test_waits_for_drafts_that_are_always_there_are_no_queue() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(2.0, 4, queue_s=0.004)
    assert rounds.stats().draft_queue_s == pytest.approx(0.0)
    rounds.run(5.5, 4, queue_s=0.014)
    assert rounds.stats().draft_queue_s == pytest.approx(0.01, abs=0.002)


def test_prompt_tokens_take_their_part_of_a_round() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(2.0, 4, num_prefilled=10)
    stats = rounds.stats()
    assert stats.prefill_s == pytest.approx(0.01)
    assert stats.prefill_tokens_per_s == pytest.approx(200)


def test_answers_are_expected_to_be_as_long_as_others_were() -> None:
    meter = VerifierMeter(4)
    assert meter.expected_left(0, 4000) == 300
    for _ in range(100):
        meter.note_end(80)
    assert meter.expected_left(20, 4000) == pytest.approx(60)
    assert meter.expected_left(200, 4000) == 1
    assert meter.expected_left(20, 7) == 7


def test_one_request_at_a_time_bears_no_more_than_one() -> None:
    rounds = Rounds()
    rounds.meter = VerifierMeter(1)
    rounds.look()
    rounds.run(1.0, 1)
    stats = rounds.stats()
    assert stats.max_requests == 1
    assert stats.curve.at(1) == pytest.approx(3 / 50.0)


def test_a_verifier_that_may_not_draft_gains_nothing() -> None:
    rounds = Rounds()
    rounds.run(1.0, 4)
    assert rounds.stats(replace(LOAD, wants_drafts=False)).speculation_gain == 0.0


def test_few_rounds_are_averaged_over_longer_than_the_window() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(4.0, 1)
    rounds.look()
    rounds.meter.advance(rounds.now_s, 1)
    rounds.now_s += 4.0
    rounds.add_plain(16)
    rounds.look()
    rounds.now_s += 2.0
    assert rounds.stats().acceptance_length == pytest.approx((3 * 80 + 16) / 96)


def test_what_is_long_ago_never_counts() -> None:
    rounds = Rounds()
    rounds.look()
    rounds.run(1.0, 1)
    for _ in range(20):
        rounds.meter.advance(rounds.now_s, 0)
        rounds.now_s += 3.0
        rounds.look()
    rounds.add_plain(16)
    assert rounds.stats().acceptance_length == 1.0
