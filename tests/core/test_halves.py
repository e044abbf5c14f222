from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from dspine_cluster.core.halves import Halves, HalvesSettings, halves_s

AT_ONCE = HalvesSettings(min_rounds=0)


def linear(constant_s: float, request_s: float) -> Callable[[int], float]:
    return lambda num_requests: constant_s + request_s * num_requests


def decided(num_requests: int, pass_s: Callable[[int], float], draft_s: Callable[[int], float]) -> bool:
    halves = Halves(AT_ONCE)
    halves.decide(num_requests, pass_s, draft_s)
    return halves.is_on


def test_halves_pay_where_passes_grow_with_requests_and_drafts_take_as_long() -> None:
    assert decided(8, linear(0.0, 1.0), linear(0.0, 1.0))


def test_halves_do_not_pay_where_a_pass_takes_the_same_for_half_the_requests() -> None:
    assert not decided(8, linear(10.0, 0.01), linear(1.0, 0.1))


def test_halves_do_not_pay_where_drafts_take_little() -> None:
    assert not decided(8, linear(1.0, 1.0), linear(0.0, 0.01))


@pytest.mark.parametrize("num_requests", [0, 1])
def test_one_request_has_no_halves(num_requests: int) -> None:
    assert not decided(num_requests, linear(0.0, 1.0), linear(0.0, 1.0))


def test_each_half_waits_for_its_own_drafts() -> None:
    assert halves_s(8, linear(0.0, 1.0), linear(0.0, 3.0)) == 4 + 12
    assert halves_s(8, linear(0.0, 3.0), linear(0.0, 1.0)) == 24


def test_an_odd_request_is_in_the_larger_half() -> None:
    assert halves_s(5, linear(0.0, 1.0), linear(0.0, 0.0)) == 6


def test_it_ends_when_it_no_longer_pays() -> None:
    halves = Halves(AT_ONCE)
    halves.decide(8, linear(0.0, 1.0), linear(0.0, 1.0))
    halves.decide(8, linear(10.0, 0.01), linear(1.0, 0.1))
    assert not halves.is_on


def test_it_ends_at_once_when_one_request_is_left() -> None:
    halves = Halves(HalvesSettings(min_rounds=1000))
    halves.decide(8, linear(0.0, 1.0), linear(0.0, 1.0))
    halves.decide(1, linear(0.0, 1.0), linear(0.0, 1.0))
    assert not halves.is_on


def test_noise_does_not_make_it_flap() -> None:
    """At the threshold, by costs that are measured with 3 % noise."""
    halves, random, changes = Halves(), Random(0), 0
    for _ in range(2000):
        was_on = halves.is_on
        factor = random.lognormvariate(0.0, 0.03)
        # 8 requests: 2 t(4) is 18 of 10 + 9 = 19, which is 0.947
        halves.decide(8, linear(8.0, 0.25), linear(8.95 * factor, 0.0))
        halves.end_pass()
        changes += halves.is_on != was_on
    assert changes <= 1


def test_drafts_add_what_a_round_takes_beyond_its_pass() -> None:
    halves = Halves(AT_ONCE)
    pass_s, draft_s = linear(0.0, 1.0), linear(0.0, 1.0)
    assert halves.added_s(8, pass_s, draft_s) == 8.0
    halves.decide(8, pass_s, draft_s)
    assert halves.is_on
    assert halves.added_s(8, pass_s, draft_s) == 0.0, "all of them are made beside the other half's pass"
    assert halves.added_s(1, pass_s, draft_s) == 1.0, "one request has no halves"
