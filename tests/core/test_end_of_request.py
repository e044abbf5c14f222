from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.end_of_request import cut_at_end, end_token_ids
from dspine_cluster.types import FinishReason, StopConditions

EOS = 9
tokens_lists = st.lists(st.integers(0, EOS), max_size=16)
conditions_strategy = st.builds(
    StopConditions,
    max_tokens=st.integers(1, 20),
    min_tokens=st.integers(0, 12),
    stop_token_ids=st.sampled_from([(), (3,), (3, 7)]),
    ignore_eos=st.booleans(),
)


def _cut_one_at_a_time(
    tokens: list[int], num_output_before: int, conditions: StopConditions
) -> tuple[list[int], FinishReason | None]:
    """Plain decoding: append a token, then ask whether the request is over."""
    kept: list[int] = []
    for token in tokens:
        num_before = num_output_before + len(kept)
        kept.append(token)
        is_end = (token == EOS and not conditions.ignore_eos) or token in conditions.stop_token_ids
        if is_end and num_before >= conditions.min_tokens:
            return kept, FinishReason.STOP
        if num_before + 1 >= conditions.max_tokens:
            return kept, FinishReason.LENGTH
    return kept, None


@given(tokens_lists, st.integers(0, 25), conditions_strategy)
def test_a_block_ends_where_plain_decoding_ends(
    tokens: list[int], num_output_before: int, conditions: StopConditions
) -> None:
    count, reason = cut_at_end(
        tokens, num_output_before=num_output_before, conditions=conditions, eos_token_ids={EOS}
    )
    assert (tokens[:count], reason) == _cut_one_at_a_time(tokens, num_output_before, conditions)


@given(tokens_lists, st.integers(0, 16), conditions_strategy)
def test_the_cut_does_not_depend_on_how_tokens_fall_into_rounds(
    tokens: list[int], split: int, conditions: StopConditions
) -> None:
    whole = cut_at_end(tokens, num_output_before=0, conditions=conditions, eos_token_ids={EOS})
    head, tail = tokens[:split], tokens[split:]
    count, reason = cut_at_end(head, num_output_before=0, conditions=conditions, eos_token_ids={EOS})
    if reason is None:
        more, reason = cut_at_end(
            tail, num_output_before=len(head), conditions=conditions, eos_token_ids={EOS}
        )
        count += more
    assert (count, reason) == whole


@pytest.mark.parametrize(
    ("tokens", "conditions", "expected"),
    [
        ([1, EOS, 2], StopConditions(max_tokens=10), (2, FinishReason.STOP)),
        ([1, EOS, 2], StopConditions(max_tokens=10, ignore_eos=True), (3, None)),
        ([1, 5, 2], StopConditions(max_tokens=10, stop_token_ids=(5,)), (2, FinishReason.STOP)),
        ([1, 2, 3], StopConditions(max_tokens=2), (2, FinishReason.LENGTH)),
        ([1, EOS], StopConditions(max_tokens=2), (2, FinishReason.STOP)),
        ([EOS, 1, EOS, 2], StopConditions(max_tokens=9, min_tokens=1), (3, FinishReason.STOP)),
    ],
)
def test_nothing_after_the_end_inside_a_block_counts(
    tokens: list[int], conditions: StopConditions, expected: tuple[int, FinishReason | None]
) -> None:
    assert cut_at_end(tokens, num_output_before=0, conditions=conditions, eos_token_ids=[EOS]) == expected


def test_end_tokens_are_stop_tokens_and_eos_unless_ignored() -> None:
    conditions = StopConditions(max_tokens=1, stop_token_ids=(3,))
    assert end_token_ids(conditions, [EOS]) == {3, EOS}
    ignoring = StopConditions(max_tokens=1, stop_token_ids=(3,), ignore_eos=True)
    assert end_token_ids(ignoring, [EOS]) == {3}
