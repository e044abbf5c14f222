from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dspine_cluster.sim.scenario import Burst, LoadConfig, share_at
from dspine_cluster.sim.workload import make_talks, rate_at
from dspine_cluster.types import PAGE_TOKENS


def test_a_seed_gives_the_same_conversations(make_scenario: Any) -> None:
    scenario = make_scenario()
    assert list(make_talks(scenario, 1)) == list(make_talks(scenario, 1))
    assert list(make_talks(scenario, 1)) != list(make_talks(scenario, 2))


def test_as_many_start_as_the_rate_says_in_order_of_time(make_scenario: Any) -> None:
    talks = list(make_talks(make_scenario(duration_s=2000.0, load={"conversations_per_s": 2}), 3))
    assert len(talks) == pytest.approx(4000, rel=0.06)
    assert all(a.starts_at_s <= b.starts_at_s for a, b in pairwise(talks))


def test_load_follows_the_day_and_bursts() -> None:
    load = LoadConfig(2.0, amplitude=0.5, period_s=100.0, bursts=(Burst(50.0, 10.0, 3.0),))
    assert rate_at(load, 0.0) == pytest.approx(1.0)
    assert rate_at(load, 50.0) == pytest.approx(9.0)
    assert rate_at(load, 60.0) < 3.0


def test_shares_are_linear_between_their_points() -> None:
    shares = ((10.0, 1.0), (20.0, 0.0))
    assert [share_at(shares, at) for at in (0, 10, 15, 20, 30)] == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_a_turn_begins_with_the_text_of_the_turns_before_and_keys_say_so(make_scenario: Any) -> None:
    talk = next(t for t in make_talks(make_scenario(), 1) if len(t.exchanges) > 2)
    first, second = talk.exchanges[:2]
    text = talk.text_ids(0, second.prompt_tokens)
    assert text[: first.prompt_tokens] == talk.text_ids(0, first.prompt_tokens)
    assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
    keys = talk.keys(1)
    assert keys.index(talk.key(0)) + 1 == (first.prompt_tokens + first.output_tokens) // PAGE_TOKENS
    assert keys.index(talk.system_key) + 1 == talk.system_tokens // PAGE_TOKENS


def test_conversations_share_system_prompts_and_nothing_else(make_scenario: Any) -> None:
    talks = list(make_talks(make_scenario(), 1))
    one = talks[0]
    other = next(t for t in talks[1:] if t.system == one.system)
    size = one.system_tokens
    assert one.text_ids(0, size) == other.text_ids(0, size)
    assert not set(one.text_ids(size, size + 50)) & set(other.text_ids(size, size + 50))
