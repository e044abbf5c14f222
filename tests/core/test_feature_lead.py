from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.feature_lead import FeatureLead


def ask(lead: FeatureLead, letter: str, *, is_near: bool) -> bool:
    """What is allowed after a pass in which it was to be drafted (d), tried (t), drafted for newcomers (n), or none of
    these (-)."""
    return lead.allows(
        drafting=letter == "d", on_trial=letter == "t", drafts_newcomers=letter == "n", is_near=is_near
    )


def play(lead: FeatureLead, passes: str, *, is_near: bool = True) -> list[bool]:
    allowed = []
    for letter in passes:
        allowed.append(ask(lead, letter, is_near=is_near))
        lead.end_pass()
    return allowed


def test_drafting_may_begin_at_once_at_first() -> None:
    assert play(FeatureLead(), "d") == [True]


def test_features_are_computed_while_and_for_some_time_after_something_is_drafted() -> None:
    lead = FeatureLead(linger_passes=2)
    is_on = []
    for letter in "d--d---":
        play(lead, letter)
        is_on.append(lead.is_on)
    assert is_on == [True] * 6 + [False]


def test_a_decision_that_is_taken_back_soon_takes_effect_at_once() -> None:
    assert play(FeatureLead(lead_passes=3, linger_passes=2), "d--d") == [True, False, False, True]


def test_features_end_at_once_where_drafting_is_not_about_to_come_back() -> None:
    lead = FeatureLead(lead_passes=3, linger_passes=8)
    assert play(lead, "d-", is_near=False) == [True, False]
    assert not lead.is_on
    assert play(lead, "dddd") == [False, False, False, True]


def test_after_a_time_without_features_drafting_waits_for_some_passes() -> None:
    lead = FeatureLead(lead_passes=3, linger_passes=1)
    assert play(lead, "d--") == [True, False, False]
    assert play(lead, "ddddd") == [False, False, False, True, True]


def test_where_newcomers_were_to_be_drafted_for_all_along_nothing_waits() -> None:
    lead = FeatureLead(lead_passes=3, linger_passes=1)
    assert play(lead, "dnnnnnd") == [True, False, False, False, False, False, True]


def test_features_end_with_a_trial() -> None:
    lead = FeatureLead(lead_passes=2, linger_passes=5)
    assert play(lead, "------ttt") == [False] * 8 + [True]
    assert lead.is_on
    play(lead, "-")
    assert not lead.is_on


def test_passes_count_from_the_last_one_without_features() -> None:
    lead = FeatureLead(lead_passes=2, linger_passes=0)
    assert play(lead, "-t-tt") == [False] * 5
    assert play(lead, "t") == [True]


def test_passes_that_compute_features_for_a_trial_alone_are_counted() -> None:
    lead = FeatureLead(lead_passes=2, linger_passes=1)
    play(lead, "-ttt-")
    assert lead.take_num_for_trial() == 3
    play(lead, "dt")  # for what was drafted before
    assert lead.take_num_for_trial() == 0


@given(
    st.lists(st.tuples(st.sampled_from("dtn-"), st.booleans()), max_size=60),
    st.integers(0, 4),
    st.integers(0, 6),
)
def test_what_is_drafted_has_the_features_of_as_many_passes_as_are_wanted(
    passes: list[tuple[str, bool]], lead_passes: int, linger_passes: int
) -> None:
    lead = FeatureLead(lead_passes, linger_passes)
    num_with_features = lead_passes  # at first nothing has been left out
    for letter, is_near in passes:
        assert ask(lead, letter, is_near=is_near) == (letter in "dt" and num_with_features >= lead_passes)
        num_with_features = num_with_features + 1 if lead.is_on else 0
        lead.end_pass()


@pytest.mark.parametrize("is_near", [True, False])
@given(st.text("dtn-", max_size=60), st.integers(0, 6))
def test_plain_decoding_alone_computes_no_features_before_long(
    is_near: bool, passes: str, linger_passes: int
) -> None:
    lead = FeatureLead(linger_passes=linger_passes)
    play(lead, passes, is_near=is_near)
    play(lead, "-" * (linger_passes + 1), is_near=is_near)
    assert not lead.is_on


def test_prompts_of_newcomers_that_will_be_drafted_for_give_drafters_their_features() -> None:
    lead = FeatureLead(lead_passes=3, linger_passes=2)
    play(lead, "----")
    lead.note_prompts(drafts_newcomers=False)
    assert not lead.is_on
    lead.note_prompts(drafts_newcomers=True)
    assert lead.is_on
    assert play(lead, "d") == [True]
