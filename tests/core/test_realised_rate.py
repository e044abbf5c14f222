from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.realised_rate import ExpectedRound, RealisedRate, RoundKind

NONE, SOME, ALL = RoundKind.NONE, RoundKind.SOME, RoundKind.ALL
NUM_REQUESTS = 4
seconds = st.floats(0.001, 10.0)


def run(
    realised: RealisedRate,
    kind: RoundKind,
    expected_s: float,
    elapsed_s: float,
    num_rounds: int,
    num_requests: int = NUM_REQUESTS,
) -> None:
    for _ in range(num_rounds):
        realised.note_pass(4.0, elapsed_s)
        realised.end_round(kind, num_requests, ExpectedRound(4.0, 0.0, expected_s))


def test_nothing_is_corrected_before_a_round_has_ended() -> None:
    realised = RealisedRate()
    realised.note_pass(1.0, 5.0)
    assert realised.ratio(ALL, NUM_REQUESTS) == 1.0


def test_rounds_of_which_no_time_is_left_say_nothing() -> None:
    realised = RealisedRate()
    run(realised, SOME, expected_s=5e-324, elapsed_s=5e-324, num_rounds=1)
    run(realised, NONE, expected_s=1.0, elapsed_s=1.0, num_rounds=1000)
    assert realised.ratio(SOME, NUM_REQUESTS) == realised.ratio(NONE, NUM_REQUESTS)


def test_rounds_that_nobody_looked_at_make_others_older() -> None:
    seen, unseen = RealisedRate(), RealisedRate()
    for realised, num_unseen in ((seen, 0), (unseen, 7)):
        run(realised, ALL, expected_s=1.0, elapsed_s=2.0, num_rounds=20)
        for _ in range(300):
            run(realised, NONE, expected_s=1.0, elapsed_s=1.0, num_rounds=1)
            for _ in range(num_unseen):
                realised.skip_round()
    assert seen.ratio(ALL, NUM_REQUESTS) < 0.65
    assert unseen.ratio(ALL, NUM_REQUESTS) > 0.75


@given(st.sampled_from(RoundKind), seconds, seconds)
def test_rounds_that_take_as_long_as_ever_have_the_ratio_of_expected_and_elapsed_time(
    kind: RoundKind, expected_s: float, elapsed_s: float
) -> None:
    realised = RealisedRate()
    elapsed_s = min(max(elapsed_s, 0.4 * expected_s), 2.9 * expected_s)
    run(realised, kind, expected_s, elapsed_s, 200)
    assert realised.ratio(kind, NUM_REQUESTS) == pytest.approx(expected_s / elapsed_s)


def test_errors_that_kinds_have_in_common_favour_none() -> None:
    realised = RealisedRate()
    run(realised, ALL, 1.0, 1.25, 40)
    assert realised.ratio(NONE, NUM_REQUESTS) == pytest.approx(0.8)
    run(realised, NONE, 1.0, 1.25, 40)
    assert realised.ratio(NONE, NUM_REQUESTS) == pytest.approx(realised.ratio(ALL, NUM_REQUESTS))


def test_each_kind_is_judged_by_its_own_rounds_once_these_are_many() -> None:
    realised = RealisedRate()
    run(realised, ALL, 1.0, 1.25, 100)
    run(realised, NONE, 1.0, 1.0, 2)
    assert realised.ratio(NONE, NUM_REQUESTS) < 0.9, "two rounds say little"
    run(realised, NONE, 1.0, 1.0, 400)
    assert realised.ratio(NONE, NUM_REQUESTS) == pytest.approx(1.0, abs=0.01)
    assert realised.ratio(ALL, NUM_REQUESTS) < 0.85


@given(st.integers(1, 64), st.integers(1, 64))
def test_what_is_known_of_few_requests_says_less_of_many_once_these_have_run(first: int, second: int) -> None:
    realised = RealisedRate()
    run(realised, SOME, 1.0, 1.0, 200, first)
    assert realised.ratio(SOME, second) == pytest.approx(1.0)
    run(realised, SOME, 1.0, 2.0, 20, second)
    if realised.ratio(SOME, first) != realised.ratio(SOME, second):  # not of the same scale
        assert realised.ratio(SOME, second) < 0.6
        assert realised.ratio(SOME, first) > 0.95


def test_what_is_not_done_any_more_is_forgotten_at_last() -> None:
    realised = RealisedRate()
    run(realised, ALL, 1.0, 2.0, 100)
    run(realised, NONE, 1.0, 1.0, 10_000)
    assert realised.ratio(ALL, NUM_REQUESTS) > 0.95


def test_passes_beside_drafts_count_with_the_tokens_they_gave() -> None:
    realised = RealisedRate()
    for _ in range(50):  # two passes beside drafts where one was expected, which give as much as they take
        realised.note_pass(3.0, 1.0)
        realised.note_pass(3.0, 1.0)
        realised.note_pass(9.0, 3.0)
        realised.end_round(SOME, NUM_REQUESTS, ExpectedRound(9.0, 3.0, 4.0))
    assert realised.ratio(SOME, NUM_REQUESTS) == pytest.approx(1.0)


def test_a_round_that_holds_what_others_do_not_says_nothing() -> None:
    realised = RealisedRate()
    run(realised, ALL, 1.0, 1.0, 20)
    realised.note_pass(4.0, None)
    realised.note_pass(4.0, 7.0)
    realised.end_round(ALL, NUM_REQUESTS, ExpectedRound(4.0, 4.0, 1.0))
    assert realised.ratio(ALL, NUM_REQUESTS) == 1.0
    run(realised, ALL, 1.0, 2.0, 1)
    assert realised.ratio(ALL, NUM_REQUESTS) < 1.0


def test_a_stall_counts_for_little() -> None:
    realised = RealisedRate()
    run(realised, ALL, 1.0, 1.0, 60)
    run(realised, ALL, 1.0, 1000.0, 1)
    assert realised.ratio(ALL, NUM_REQUESTS) > 0.95


def test_the_kind_of_a_round_is_who_is_drafted_for() -> None:
    assert [RoundKind.of(count, 3) for count in range(4)] == [NONE, SOME, SOME, ALL]
