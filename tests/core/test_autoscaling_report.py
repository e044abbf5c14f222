from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.autoscaling_report import (
    decode_drafter,
    decode_verifier,
    encode_drafter,
    encode_verifier,
)
from dspine_cluster.core.autoscaling_stats import DrafterStats, RoundCurve, VerifierStats

NUMBERS = st.floats(0, 1e6)
SECONDS = st.floats(1e-6, 1e6)
VERIFIER = VerifierStats(
    "v", 0.5, RoundCurve((1, 4, 32), (0.02, 0.03, 0.09)), 32, committed_tokens_per_s=80.0
)


@given(st.builds(DrafterStats, st.just("d"), NUMBERS, NUMBERS, NUMBERS))
def test_a_drafter_s_figures_come_back(stats: DrafterStats) -> None:
    assert decode_drafter("d", encode_drafter(stats), 0.0) == stats


@given(NUMBERS, NUMBERS, st.lists(SECONDS, min_size=2, max_size=9))
def test_a_verifier_s_figures_come_back(gain: float, running: float, seconds: list[float]) -> None:
    curve = RoundCurve(tuple(2**i for i in range(len(seconds))), tuple(seconds))
    stats = replace(VERIFIER, speculation_gain=gain, running_requests=running, curve=curve)
    assert decode_verifier("v", encode_verifier(stats), 0.0) == stats


def test_figures_grow_older_on_the_way() -> None:
    decoded = decode_verifier("v", encode_verifier(VERIFIER), 2.0)
    assert decoded is not None
    assert decoded.age_s == 2.5


@pytest.mark.parametrize("missing", sorted(encode_verifier(VERIFIER).keys() - {"dspine_curve_4"}))
def test_half_of_the_figures_are_none(missing: str) -> None:
    values = {name: value for name, value in encode_verifier(VERIFIER).items() if name != missing}
    if missing.startswith("dspine_curve"):
        values.pop("dspine_curve_4")
    assert decode_verifier("v", values, 0.0) is None


@pytest.mark.parametrize(
    ("broken", "value"),
    [
        (name, value)
        for name, value in product(encode_verifier(VERIFIER), (nan, inf, -inf, -1.0, 1e13))
        if (name, value) != ("dspine_speculation_gain", inf)
    ],
)
def test_figures_with_one_that_cannot_be_are_none(broken: str, value: float) -> None:
    assert decode_verifier("v", encode_verifier(VERIFIER) | {broken: value}, 0.0) is None


def test_a_verifier_that_knows_nothing_of_drafts_counts_all_the_same() -> None:
    """As one that was started while there was no drafter: else nothing would ever be decided again."""
    stats = replace(VERIFIER, speculation_gain=inf)
    assert decode_verifier("v", encode_verifier(stats), 0.0) == stats


def test_a_round_of_nobody_is_no_figure() -> None:
    assert decode_verifier("v", encode_verifier(VERIFIER) | {"dspine_curve_0": 0.01}, 0.0) is None


@pytest.mark.parametrize("broken", sorted(encode_drafter(DrafterStats("d", 0.0))))
@pytest.mark.parametrize("value", [nan, inf, -1.0])
def test_a_drafter_s_figures_with_one_that_cannot_be_are_none(broken: str, value: float) -> None:
    assert decode_drafter("d", encode_drafter(DrafterStats("d", 0.0)) | {broken: value}, 0.0) is None


def test_rounds_that_take_no_time_are_no_figures() -> None:
    assert decode_verifier("v", encode_verifier(VERIFIER) | {"dspine_curve_1": 0.0}, 0.0) is None


def test_names_are_not_those_of_serve() -> None:
    assert all(
        name.startswith("dspine_")
        for name in (encode_verifier(VERIFIER) | encode_drafter(DrafterStats("d", 0)))
    )


def test_what_serve_itself_tells_is_no_drafter_s_figures() -> None:
    assert decode_drafter("d", {"running_requests": 1.0}, 0.0) is None
