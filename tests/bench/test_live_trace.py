from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.bench.live_trace import LiveAnswer, LiveSettings, make_live_trace, summarise_live

SETTINGS = LiveSettings(num_conversations=40)


def test_equal_settings_give_equal_conversations_and_seeds_give_others() -> None:
    assert make_live_trace(SETTINGS) == make_live_trace(SETTINGS)
    assert make_live_trace(SETTINGS) != make_live_trace(replace(SETTINGS, seed=2))


@given(st.integers(0, 1000), st.integers(2, 6))
def test_every_conversation_comes_back_at_least_once(seed: int, max_turns: int) -> None:
    settings = LiveSettings(num_conversations=5, max_turns=max_turns, seed=seed)
    assert all(2 <= len(conversation.turns) <= max_turns for conversation in make_live_trace(settings))


def test_conversations_start_one_after_the_other_at_the_rate_asked_for() -> None:
    settings = LiveSettings(num_conversations=200, conversations_per_s=5.0)
    starts_s = [conversation.turns[0].gap_s for conversation in make_live_trace(settings)]
    assert starts_s == sorted(starts_s)
    assert 200 / 5.0 * 0.8 < starts_s[-1] < 200 / 5.0 * 1.2


def test_system_prompts_are_shared_and_the_first_is_the_most_popular() -> None:
    trace = make_live_trace(LiveSettings(num_conversations=200))
    counts = [sum(c.system == system for c in trace) for system in {c.system for c in trace}]
    assert len(counts) == SETTINGS.num_system_prompts
    assert max(counts) > 200 / SETTINGS.num_system_prompts


def test_a_summary_counts_what_happened_between_the_two_looks_at_the_counters() -> None:
    answers = [LiveAnswer(0.1 * number, 100, 50 * (number % 2), 10) for number in range(1, 5)]
    before = {"placements_total{reason=prefix}": 3.0, "colocated_placements_total": 3.0, "open_streams": 1.0}
    after = {
        "placements_total{reason=prefix}": 5.0,
        "placements_total{reason=least_loaded}": 2.0,
        "colocated_placements_total": 6.0,
        "open_streams": 0.0,
    }
    assert summarise_live(answers, before, after) == {
        "num_requests": 4,
        "mean_prompt_tokens": 100,
        "cached_token_ratio": 0.25,
        "ttft_p50_s": pytest.approx(0.2),
        "ttft_p99_s": pytest.approx(0.4),
        "colocated_ratio": 0.75,
        "placements": {"prefix": 2.0, "least_loaded": 2.0},
    }
