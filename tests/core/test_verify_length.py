from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.verify_length import BlockView, FixedVerifyLength, PassLoad

views = st.lists(st.builds(BlockView, st.integers(0, 99), st.integers(0, 15), st.just(())), max_size=5)


@given(views, st.integers(0, 15))
def test_a_fixed_length_is_bounded_by_what_there_is(blocks: list[BlockView], length: int) -> None:
    lengths = FixedVerifyLength(length).choose(blocks)
    assert all(
        chosen == min(length, block.num_proposals) for chosen, block in zip(lengths, blocks, strict=True)
    )
    assert len(lengths) == len(blocks)


@given(views, st.integers(0, 40))
def test_a_fixed_length_fits_into_the_pass(blocks: list[BlockView], room: int) -> None:
    lengths = FixedVerifyLength(15).choose(blocks, PassLoad(max_verified_tokens=room))
    assert sum(lengths) <= room


def test_where_room_is_short_the_longest_blocks_are_shortened() -> None:
    blocks = [BlockView(0, 15, ()), BlockView(1, 3, ())]
    assert FixedVerifyLength(15).choose(blocks, PassLoad(max_verified_tokens=8)) == [5, 3]


def test_nothing_is_drafted_for_where_nothing_is_verified() -> None:
    assert not FixedVerifyLength(0).wants_drafts
    assert list(FixedVerifyLength(0).choose_drafts([1, 2])) == []
    assert list(FixedVerifyLength(3).choose_drafts([1, 2])) == [1, 2]
