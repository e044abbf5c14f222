from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.verifier_figures import RecentFigures, VerifierFigures

counts = st.integers(0, 1000)
lists = st.lists(counts, max_size=4).map(tuple)
figures = st.builds(VerifierFigures, counts, counts, counts, counts, counts, lists, lists, lists)
FIGURES = VerifierFigures(
    rounds=4,
    drafted_rounds=2,
    committed_tokens=10,
    prompt_tokens=100,
    cached_prompt_tokens=25,
    verified_per_position=(2, 1),
    accepted_per_position=(1,),
    rounds_per_verify_length=(0, 1, 1),
)


def without_trailing_zeros(values: tuple[int, ...]) -> tuple[int, ...]:
    while values and values[-1] == 0:
        values = values[:-1]
    return values


@given(figures, figures)
def test_what_is_added_is_the_difference(one: VerifierFigures, other: VerifierFigures) -> None:
    difference = VerifierFigures.total([one, other]).since(one)
    assert difference.committed_tokens == other.committed_tokens
    assert difference.rounds == other.rounds
    assert difference.cached_ratio == other.cached_ratio
    for name in ("verified_per_position", "accepted_per_position", "rounds_per_verify_length"):
        assert without_trailing_zeros(getattr(difference, name)) == without_trailing_zeros(
            getattr(other, name)
        )


def test_ratios_are_of_what_they_name() -> None:
    assert FIGURES.acceptance_length == 2.5
    assert FIGURES.verify_length == 1.5
    assert FIGURES.cached_ratio == 0.25
    assert FIGURES.acceptance_by_position == (0.5, 0.0)
    assert FIGURES.verify_length_shares == (0.0, 0.5, 0.5)


def test_nothing_done_has_no_ratios() -> None:
    nothing = VerifierFigures()
    assert nothing.acceptance_length is nothing.verify_length is nothing.cached_ratio is None
    assert nothing.acceptance_by_position == nothing.verify_length_shares == ()


def test_recent_figures_count_from_the_last_sample_before_the_window() -> None:
    recent = RecentFigures(window_s=10.0)
    for at_s, tokens in ((0.0, 0), (5.0, 50), (14.0, 140), (20.0, 200)):
        recent.note(VerifierFigures(committed_tokens=tokens), at_s)
    done, taken_s = recent.recent(20.0)
    assert (done.committed_tokens, taken_s) == (150, 10.0)
    assert recent.latest.committed_tokens == 200


def test_a_verifier_that_does_nothing_more_has_no_recent_figures() -> None:
    recent = RecentFigures(window_s=10.0)
    recent.note(VerifierFigures(committed_tokens=5), 0.0)
    recent.note(VerifierFigures(committed_tokens=9), 1.0)
    assert recent.recent(11.0)[0].committed_tokens == 0
    assert recent.latest.committed_tokens == 9


def test_a_young_verifier_s_rate_is_of_the_time_that_it_is_known() -> None:
    recent = RecentFigures(window_s=10.0)
    recent.note(VerifierFigures(committed_tokens=100), 50.0)
    recent.note(VerifierFigures(committed_tokens=160), 53.0)
    done, taken_s = recent.recent(54.0)
    assert done.committed_tokens / taken_s == pytest.approx(15.0)
