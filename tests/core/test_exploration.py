from __future__ import annotations

from dspine_cluster.core.exploration import Exploration, ExplorationSettings, PlainTrials


def rounds_until_due(exploration: Exploration) -> int:
    for number in range(10_000):
        if exploration.is_due:
            return number
        exploration.end_pass()
    raise AssertionError("never due")


def test_one_round_in_64_explores() -> None:
    exploration = Exploration()
    assert rounds_until_due(exploration) == 2, "soon after the start"
    exploration.begin(7)
    assert exploration.uid == 7
    assert not exploration.is_due
    exploration.end(8, cost_tokens=0.5)
    assert exploration.uid is None
    assert rounds_until_due(exploration) == 64


def test_a_trial_that_is_dear_is_made_more_rarely() -> None:
    exploration = Exploration(ExplorationSettings(max_loss=0.02))
    exploration.begin(7)
    exploration.end(1, cost_tokens=4.0)
    assert rounds_until_due(exploration) == 200
    exploration.begin(7)
    exploration.end(1, cost_tokens=4.0, num_accepted=1)
    assert rounds_until_due(exploration) == 150


def test_a_trial_that_paid_is_repeated_with_the_same_request() -> None:
    exploration = Exploration()
    exploration.begin(7)
    exploration.end(1, cost_tokens=2.0, num_accepted=9)
    assert exploration.uid == 7


def test_one_failure_does_not_end_a_good_series_and_a_bad_past_does_not_hinder_one() -> None:
    exploration = Exploration()
    for _ in range(10):
        exploration.begin(7)
        exploration.end(1, cost_tokens=2.0)
        assert exploration.uid is None
    exploration.begin(7)
    exploration.end(1, cost_tokens=2.0, num_accepted=9)
    exploration.end(1, cost_tokens=2.0, num_accepted=0)
    assert exploration.uid == 7
    exploration.end(1, cost_tokens=4.0, num_accepted=0)
    assert exploration.uid is None


def test_a_trial_that_cannot_be_made_is_soon_replaced() -> None:
    exploration = Exploration(ExplorationSettings(max_missed=3))
    rounds_until_due(exploration)
    exploration.begin(7)
    exploration.miss()
    exploration.miss()
    assert exploration.uid == 7, "its drafter may have to catch up"
    exploration.miss()
    assert exploration.is_due
    exploration.skip()
    assert rounds_until_due(exploration) == 64


def plain_passes(trials: PlainTrials, exploration: Exploration, num_passes: int, **known: bool) -> list[int]:
    """The passes that are plain."""
    plain = []
    for number in range(num_passes):
        exploration.end_pass()
        if trials.is_next(exploration, **known):
            plain.append(number)
        elif exploration.is_due:
            exploration.begin(7)
            exploration.end(8, cost_tokens=0.1)
    return plain


def test_every_other_exploration_is_plain_where_that_is_nearly_as_fast() -> None:
    known = {"is_plain_close": True, "may_plain_be_faster": False}
    assert plain_passes(PlainTrials(), Exploration(), 200, **known) == [1, 129]


def test_where_all_is_far_faster_nothing_is_tried_without_drafts() -> None:
    known = {"is_plain_close": False, "may_plain_be_faster": False}
    assert plain_passes(PlainTrials(), Exploration(), 200, **known) == []


def test_where_plain_decoding_may_be_faster_it_is_tried_for_some_passes_in_a_row() -> None:
    known = {"is_plain_close": False, "may_plain_be_faster": True}
    assert plain_passes(PlainTrials(), Exploration(), 40, **known) == [16, 17, 18, 19, 36, 37, 38, 39]
