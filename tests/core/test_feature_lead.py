from __future__ import annotations

from dspine_cluster.core.feature_lead import FeatureLead


def play(lead: FeatureLead, passes: str) -> list[bool]:
    """What was allowed after passes in which it was to be drafted (d), tried (t), or neither (-)."""
    allowed = []
    for letter in passes:
        allowed.append(lead.allows(drafting=letter == "d", on_trial=letter == "t"))
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


def test_after_a_time_without_features_drafting_waits_for_some_passes() -> None:
    lead = FeatureLead(lead_passes=3, linger_passes=1)
    assert play(lead, "d--") == [True, False, False]
    assert play(lead, "ddddd") == [False, False, False, True, True]


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
