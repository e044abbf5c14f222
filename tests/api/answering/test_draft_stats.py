from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.draft_stats import DraftStats
from dspine_cluster.types import FinishReason, RoundOutput, Usage

Rounds = list[tuple[int, int]]
"""(verified, accepted) of each round."""


def body_of(rounds: Rounds) -> DraftStats:
    """A prefill's token, the rounds, and a last item without tokens."""
    stats = DraftStats()
    usage = Usage(output_tokens=1)
    stats.push(RoundOutput((0,), "", usage=usage))
    for verified, accepted in rounds:
        usage = Usage(
            output_tokens=usage.output_tokens + accepted + 1,
            num_rounds=usage.num_rounds + 1,
            proposed_tokens=usage.proposed_tokens + 15,
            verified_tokens=usage.verified_tokens + verified,
            accepted_tokens=usage.accepted_tokens + accepted,
        )
        stats.push(RoundOutput((1,) * (accepted + 1), "", accepted, usage=usage))
    stats.push(RoundOutput((), "", finish_reason=FinishReason.STOP, usage=usage))
    return stats


@given(st.lists(st.integers(0, 15).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1))
def test_positions_sum_to_the_totals(rounds: Rounds) -> None:
    body = body_of(rounds).body()
    assert body.rounds == len(rounds)
    assert sum(body.verified_by_position) == body.verified_tokens == sum(k for k, _ in rounds)
    assert sum(body.accepted_by_position) == body.accepted_tokens == sum(a for _, a in rounds)
    assert len(body.verified_by_position) == len(body.accepted_by_position) == max(k for k, _ in rounds)
    assert body.acceptance_length == (body.accepted_tokens + len(rounds)) / len(rounds)
    assert body.verify_length_mean == body.verified_tokens / len(rounds)
    assert body.drafted == (body.verified_tokens > 0)


def test_the_prefill_s_token_belongs_to_no_round() -> None:
    body = body_of([]).body()
    assert (body.rounds, body.acceptance_length, body.verify_length_mean, body.drafted) == (
        0,
        None,
        None,
        False,
    )


def test_by_position() -> None:
    body = body_of([(3, 2), (2, 0), (1, 1), (0, 0)]).body()
    assert body.verified_by_position == [3, 2, 1]
    assert body.accepted_by_position == [2, 1, 0]
