from __future__ import annotations

import pytest

from dspine_cluster.core.prefill_rate import PrefillRate


def test_it_is_not_known_before_the_first_prompt() -> None:
    rate = PrefillRate()
    rate.note(0, 1.0)
    assert rate.tokens_per_s == 0.0


def test_it_is_tokens_over_time() -> None:
    rate = PrefillRate()
    for _ in range(3):
        rate.note(200, 0.1)
    assert rate.tokens_per_s == pytest.approx(2000.0)


def test_the_few_tokens_that_end_a_prompt_hardly_count() -> None:
    rate = PrefillRate()
    for _ in range(10):
        rate.note(256, 0.1)
        rate.note(3, 0.05)
    assert rate.tokens_per_s == pytest.approx(2560.0, rel=0.02)


def test_it_follows_the_load() -> None:
    rate = PrefillRate(window_tokens=1000)
    for _ in range(50):
        rate.note(256, 0.1)
    for _ in range(50):
        rate.note(256, 0.2)
    assert rate.tokens_per_s == pytest.approx(1280.0, rel=0.01)
