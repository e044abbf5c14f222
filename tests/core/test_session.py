from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.session import Phase, Session
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions


def make_session(prompt: tuple[int, ...] = (1, 2, 3), forced: tuple[int, ...] = ()) -> Session:
    request = GenerateRequest("r", prompt, SamplingParams(), StopConditions(max_tokens=100), forced)
    return Session(1, request, arrival=0)


def prefill(session: Session) -> None:
    session.phase = Phase.PREFILL
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
    session.pages = [3, 4]
    asked = session.round
    assert session.preempt() == [3, 4]
    assert session.tokens == [1, 2, 3, 7]
    assert session.num_computed == 0
    assert session.round != asked


def test_a_round_cannot_accept_more_than_it_verified() -> None:
    session = make_session()
    prefill(session)
    with pytest.raises(AssertionError):
        session.commit_round([1, 2], num_proposed=15, num_verified=0, num_accepted=1)
