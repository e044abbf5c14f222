from __future__ import annotations

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.sim.round_table import RoundTable
from dspine_cluster.sim.verifier import VerifierLimits

COSTS = CostModel()
LIMITS = VerifierLimits(max_verify_length=15)


def table(verify: str = "dynamic", *acceptances: float) -> RoundTable:
    return RoundTable(COSTS, acceptances or (0.75,), verify, LIMITS)


def test_a_fixed_length_takes_and_gives_what_it_must() -> None:
    found = table("fixed:3").round((4,), 0)
    assert found.seconds == pytest.approx(COSTS.pass_s(4, 16, 0) + COSTS.drafts_s(4))
    assert found.committed[0] == pytest.approx(1 + 0.75 + 0.75**2 + 0.75**3)


def test_the_real_choice_is_at_least_as_fast_as_any_fixed_length() -> None:
    for count in (1, 16, 64):
        rates = []
        for verify in ("dynamic", "off", *(f"fixed:{k}" for k in (1, 2, 4, 8, 15))):
            found = table(verify).round((count,), 0)
            rates.append(found.committed[0] / found.seconds)
        assert rates[0] >= max(rates) * (1 - 1e-9)


def test_with_more_requests_less_is_verified_of_each() -> None:
    lengths = [table().round((count,), 0).committed[0] for count in (1, 32, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2]


def test_without_a_drafter_and_where_nothing_is_accepted_decoding_is_plain() -> None:
    assert table().round((8,), 0, has_drafter=False).committed == (1.0,)
    assert table("dynamic", 0.01).round((8,), 0).draft_s == 0.0
    assert table("dynamic", 0.01).gain((8,)) == pytest.approx(1.0)
    assert table("dynamic", 0.9).gain((8,)) > 3


def test_what_is_likelier_to_be_accepted_is_verified_more() -> None:
    code, prose = table("dynamic", 0.95, 0.5).round((20, 20), 0).committed
    assert code > 3 * prose


def test_a_curve_tells_how_long_as_much_takes_in_other_batches() -> None:
    rounds = table()
    length, curve = rounds.curve((8,), True)
    assert length == rounds.round((8,), 0).committed[0]
    there = rounds.round((64,), 0)
    assert curve.at(64) == pytest.approx(there.seconds * length / there.committed[0])
