from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.page_hash import page_keys, root_key
from dspine_cluster.core.prefix_index import Match
from dspine_cluster.core.resume import COLD_START, Resume
from dspine_cluster.core.session import Session
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions


def make_session(prompt: tuple[int, ...] = (1, 2, 3), forced: tuple[int, ...] = ()) -> Session:
    request = GenerateRequest("r", prompt, SamplingParams(), StopConditions(max_tokens=100), forced)
    return Session(1, request, arrival=0)


def prefill(session: Session) -> None:
    session.start(COLD_START, [0], 0)
    session.advance_prefill(len(session.tokens))
    session.commit_first(7)


def test_forced_tokens_count_as_output() -> None:
    session = make_session(forced=(4, 5))
    assert (session.num_prompt, session.num_output, session.remaining_output) == (3, 2, 98)


def test_the_first_token_belongs_to_no_round() -> None:
    session = make_session()
    prefill(session)
    assert session.usage.num_rounds == 0
    assert session.usage.output_tokens == 1


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=10))
def test_after_every_round_all_but_the_anchor_is_computed(rounds: list[tuple[int, int]]) -> None:
    session = make_session()
    prefill(session)
    for num_verified, num_accepted in rounds:
        accepted = min(num_verified, num_accepted)
        session.commit_round(
            [9] * (accepted + 1), num_proposed=15, num_verified=num_verified, num_accepted=accepted
        )
        assert session.num_computed == session.anchor_position
    assert session.usage.num_rounds == len(rounds)
    assert session.usage.output_tokens == 1 + len(rounds) + session.usage.accepted_tokens


def test_preemption_keeps_committed_tokens_and_invalidates_drafts() -> None:
    session = make_session()
    prefill(session)
    session.pages = array("i", [3, 4])
    asked = session.round
    assert list(session.preempt()) == [3, 4]
    assert (session.num_in_state, session.num_indexed_pages) == (0, 0)
    assert session.tokens == [1, 2, 3, 7]
    assert session.num_computed == 0
    assert session.round != asked


def test_a_round_cannot_accept_more_than_it_verified() -> None:
    session = make_session()
    prefill(session)
    with pytest.raises(AssertionError):
        session.commit_round([1, 2], num_proposed=15, num_verified=0, num_accepted=1)


def resumed(num_tokens: int) -> Resume:
    return Resume(Match(num_tokens=num_tokens, pages=tuple(range(num_tokens // 16))))


def test_a_resumed_session_computes_only_what_its_match_lacks() -> None:
    session = make_session(prompt=tuple(range(100)))
    session.start(resumed(64), list(range(7)), 2)
    assert (session.num_computed, session.num_in_state, session.num_indexed_pages) == (64, 64, 4)
    session.advance_prefill(36)
    assert (session.num_computed, session.num_in_state) == (100, 100)


def test_the_prompt_counts_as_cached_as_far_as_the_first_admission_found_it() -> None:
    session = make_session(prompt=tuple(range(100)), forced=tuple(range(60)))
    session.start(resumed(64), list(range(10)), 0)
    session.preempt()
    session.start(resumed(144), list(range(10)), 0)
    assert session.usage.cached_prompt_tokens == 64
    other = make_session(prompt=tuple(range(100)), forced=tuple(range(60)))
    other.start(resumed(144), list(range(10)), 0)
    assert other.usage.cached_prompt_tokens == 100


def test_the_state_lags_behind_by_the_block_that_waits_to_be_replayed() -> None:
    session = make_session()
    prefill(session)
    session.commit_round([9, 9, 9], num_proposed=15, num_verified=15, num_accepted=2)
    assert (session.num_computed, session.num_in_state) == (6, 4)


@given(st.integers(1, 100), st.lists(st.integers(1, 16), max_size=6))
def test_keys_are_those_of_all_full_pages_of_committed_tokens(num_prompt: int, rounds: list[int]) -> None:
    session = make_session(prompt=tuple(range(num_prompt)))
    session.root = root_key("tenant")
    prefill(session)
    for count in rounds:
        session.commit_round([5] * count, num_proposed=15, num_verified=15, num_accepted=count - 1)
        assert session.keys == page_keys(session.tokens, session.root)
