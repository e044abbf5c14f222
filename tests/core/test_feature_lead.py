from __future__ import annotations

from dspine_cluster.core.feature_lead import FeatureLead


def test_drafting_may_begin_at_once_at_first() -> None:
    assert FeatureLead().allows(True)


def test_features_are_computed_as_long_as_something_is_to_be_drafted() -> None:
    lead = FeatureLead()
    for is_wanted in (True, False, False, True):
        lead.allows(is_wanted)
        assert lead.is_on is is_wanted


def test_after_a_time_without_features_drafting_waits_for_some_passes() -> None:
    lead = FeatureLead(lead_passes=3)
    assert not lead.allows(False)
    lead.end_pass()
    allowed = []
    for _ in range(5):
        allowed.append(lead.allows(True))
        lead.end_pass()
    assert allowed == [False, False, False, True, True]


def test_passes_count_from_the_last_one_without_features() -> None:
    lead = FeatureLead(lead_passes=2)
    for is_wanted in (False, True, False, True, True):
        lead.allows(is_wanted)
        lead.end_pass()
    assert lead.allows(True)
    lead.allows(False)
    assert not lead.allows(True)
