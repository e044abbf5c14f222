from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.prefix_index import NO_MATCH, Match
from dspine_cluster.core.resume import plan_resume
from dspine_cluster.types import CHUNK_GRID_TOKENS


def checkpoints(num_tokens: int, *boundaries: int, match: Match = NO_MATCH) -> tuple[int, ...]:
    return plan_resume(match, num_tokens, num_tokens, boundaries, has_states=True).checkpoints


def test_states_are_saved_before_the_last_two_message_boundaries() -> None:
    assert checkpoints(1000, 100, 300, 700, 950) == (640, 896)


def test_boundaries_in_one_piece_share_a_checkpoint() -> None:
    assert checkpoints(1000, 900, 950) == (896,)


def test_a_prompt_without_messages_counts_as_one() -> None:
    assert checkpoints(1000) == (960,)
    assert checkpoints(1024) == (960,)


def test_long_prompts_leave_a_checkpoint_each_stride() -> None:
    assert checkpoints(10_000, 9990) == (4096, 8192, 9984)


def test_a_state_is_saved_where_the_prompt_parts_from_cached_ones() -> None:
    match = Match(num_tokens=128, num_known_tokens=528)
    assert checkpoints(1000, 950, match=match) == (512, 896)


def test_nothing_is_saved_again_that_the_request_resumes_from() -> None:
    assert checkpoints(1000, 600, 640, match=Match(num_tokens=640, num_known_tokens=640)) == ()


def test_a_start_off_the_grid_goes_to_the_next_grid_point_first() -> None:
    resume = plan_resume(Match(num_tokens=131, num_known_tokens=128), 500, 500, (450,), has_states=True)
    assert resume.splits == (192, 448)
    assert resume.checkpoints == (448,)
    assert [resume.next_split(n, 500) for n in (131, 192, 448)] == [192, 448, 500]


def test_a_target_without_states_needs_neither() -> None:
    resume = plan_resume(Match(num_tokens=48, num_known_tokens=48), 500, 500, (450,), has_states=False)
    assert (resume.checkpoints, resume.splits) == ((), ())


@given(
    num_tokens=st.integers(1, 20_000),
    start=st.integers(0, 20_000),
    num_known=st.integers(0, 20_000),
    boundaries=st.lists(st.integers(0, 20_000), max_size=5),
)
def test_states_are_saved_at_grid_points_behind_the_start(
    num_tokens: int, start: int, num_known: int, boundaries: list[int]
) -> None:
    start = min(start, num_tokens - 1)
    match = Match(num_tokens=start, num_known_tokens=min(num_known, num_tokens))
    resume = plan_resume(match, num_tokens, num_tokens, boundaries, has_states=True)
    for length in resume.checkpoints:
        assert length % CHUNK_GRID_TOKENS == 0
        assert start < length < num_tokens
    assert set(resume.checkpoints) <= set(resume.splits)
    assert list(resume.splits) == sorted(resume.splits)
