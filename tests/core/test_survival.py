from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.survival import SurvivalModel, cells_of


def learn(
    model: SurvivalModel, acceptance: float, *, num: int, confidence: float = 0.75, seed: int = 0
) -> None:
    """Blocks of 4 whose proposals are accepted with `acceptance`, all at one confidence."""
    random = Random(seed)
    for _ in range(num):
        accepted = next((i for i in range(4) if random.random() >= acceptance), 4)
        note(model, [confidence] * 4, accepted)


def note(model: SurvivalModel, confidences: Sequence[float], num_accepted: int) -> None:
    """A block was verified, and the proposal after those that were accepted was rejected."""
    model.note([(cells_of(confidences)[: num_accepted + 1], num_accepted)])


def conditional(model: SurvivalModel, position: int, confidence: float) -> float:
    return model.rates[cells_of([confidence] * (position + 1))[-1]]


def test_before_anything_was_verified_the_confidence_is_believed() -> None:
    assert conditional(SurvivalModel(), 0, 0.75) == pytest.approx(0.75)
    assert conditional(SurvivalModel(), 14, 0.25) == pytest.approx(0.25)


@pytest.mark.parametrize("acceptance", [0.2, 0.95])
def test_what_is_verified_corrects_the_confidence(acceptance: float) -> None:
    model = SurvivalModel()
    learn(model, acceptance, num=400)
    assert conditional(model, 0, 0.75) == pytest.approx(acceptance, abs=0.08)
    assert conditional(model, 14, 0.75) == pytest.approx(acceptance, abs=0.08), "positions lean on each other"
    assert conditional(model, 0, 0.15) == pytest.approx(0.15), "other confidences are not touched"


def test_it_follows_what_changes() -> None:
    model = SurvivalModel()
    learn(model, 0.9, num=1000)
    learn(model, 0.3, num=600, seed=1)
    assert conditional(model, 0, 0.75) == pytest.approx(0.3, abs=0.1)


def test_positions_can_differ() -> None:
    model = SurvivalModel()
    for _ in range(300):
        note(model, [0.75] * 2, 1)
    assert conditional(model, 0, 0.75) > 0.9
    assert conditional(model, 1, 0.75) < 0.1


def test_a_verified_block_without_a_rejection_shows_only_successes() -> None:
    model = SurvivalModel()
    for _ in range(100):
        note(model, [0.55, 0.55], 2)
    assert conditional(model, 1, 0.55) > 0.95


@given(st.lists(st.floats(0, 1), min_size=1, max_size=15), st.lists(st.integers(0, 15), max_size=20))
def test_survivals_are_probabilities_that_fall(confidences: list[float], accepted: list[int]) -> None:
    model = SurvivalModel()
    for number in accepted:
        note(model, confidences, min(number, len(confidences)))
    survivals = [1.0, *model.curve(cells_of(confidences))]
    assert all(1.0 >= before >= after >= 0.0 for before, after in pairwise(survivals))


def test_what_is_expected_of_unseen_rows_is_the_mean_of_their_position() -> None:
    model = SurvivalModel()
    learn(model, 0.9, num=500, confidence=0.75)
    learn(model, 0.3, num=500, confidence=0.25)
    assert 0.5 < model.expected[0] < 0.7
    assert model.expected[14] == pytest.approx(0.7), "none was verified there"


def test_what_was_noted_changes_rates_within_four_passes() -> None:
    model = SurvivalModel()
    learn(model, 0.5, num=1100)
    before = conditional(model, 1, 0.75)
    model.note([(cells_of([0.75] * 4), 4)])
    for _ in range(4):
        model.note([])
    assert conditional(model, 1, 0.75) > before


def test_the_first_blocks_change_rates_at_once() -> None:
    model = SurvivalModel()
    for _ in range(10):
        before = conditional(model, 1, 0.75)
        note(model, [0.75] * 2, 1)
        assert conditional(model, 1, 0.75) < before
