from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.verify_length import Blocks, FixedVerifyLength, PassLoad

counts_strategy = st.lists(st.integers(0, 15), max_size=5)


def blocks_of(counts: Sequence[int]) -> Blocks:
    return Blocks(range(len(counts)), counts, [()] * len(counts), [True] * len(counts))


@given(counts_strategy, st.integers(0, 15))
def test_a_fixed_length_is_bounded_by_what_there_is(counts: list[int], length: int) -> None:
    assert FixedVerifyLength(length).choose(blocks_of(counts)) == [min(length, count) for count in counts]


@given(counts_strategy, st.integers(0, 40))
def test_a_fixed_length_fits_into_the_pass(counts: list[int], room: int) -> None:
    lengths = FixedVerifyLength(15).choose(blocks_of(counts), PassLoad(max_verified_tokens=room))
    assert sum(lengths) <= room


def test_where_room_is_short_the_longest_blocks_are_shortened() -> None:
    blocks = blocks_of([15, 3])
    assert FixedVerifyLength(15).choose(blocks, PassLoad(max_verified_tokens=8)) == [5, 3]


def test_nothing_is_drafted_for_where_nothing_is_verified() -> None:
    assert not FixedVerifyLength(0).wants_drafts
    assert list(FixedVerifyLength(0).choose_drafts([1, 2])) == []
    assert list(FixedVerifyLength(3).choose_drafts([1, 2])) == [1, 2]
