"""The tree of cached pages by itself; how requests use it is shown in `verifier/test_streams`."""

from __future__ import annotations

import pytest

from dspine_cluster.core.page_hash import page_keys, root_key
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.prefix_index import NO_MATCH, Match, PrefixIndex
from dspine_cluster.types import PAGE_TOKENS

ROOT = root_key("test")
TOKENS = list(range(10 * PAGE_TOKENS))
KEYS = page_keys(TOKENS, ROOT)


def make_index(num_pages: int = 20, *, has_states: bool = False, max_checkpoints: int = 4) -> PrefixIndex:
    return PrefixIndex(
        PagePool(num_pages), has_states=has_states, max_checkpoints=max_checkpoints if has_states else 0
    )


def cache(
    index: PrefixIndex,
    num_pages: int,
    *,
    tokens: list[int] = TOKENS,
    checkpoints: tuple[int, ...] = (),
    num_tail: int = 0,
) -> list[int]:
    """A request computes full pages, leaves checkpoints after some of them and perhaps a tail, and goes."""
    keys = page_keys(tokens, ROOT)
    match = index.match(keys, tokens)
    index.hold(match)
    held = len(match.pages)
    pages = [*match.pages, *index.allocate(num_pages - held + 1)]
    if match.tail_page is not None:
        index.release([match.tail_page])
    index.insert(keys, pages, held, num_pages)
    for number in checkpoints:
        index.add_checkpoint(keys[number - 1])
    if num_tail:
        tail = tuple(tokens[num_pages * PAGE_TOKENS :][:num_tail])
        index.add_checkpoint(keys[num_pages - 1], tail, pages[-1])
    index.release(pages)
    index.check_integrity()
    return pages


def find(index: PrefixIndex, tokens: list[int]) -> Match:
    return index.match(page_keys(tokens, ROOT), tokens)


def test_an_empty_index_matches_nothing() -> None:
    assert find(make_index(), TOKENS) == NO_MATCH


def test_a_dense_target_resumes_at_every_cached_page() -> None:
    index = make_index()
    pages = cache(index, 3)
    match = find(index, TOKENS)
    assert (match.num_tokens, match.pages, match.num_idle_pages) == (48, tuple(pages[:3]), 3)


@pytest.mark.parametrize("has_states", [True, False])
def test_a_hit_leaves_at_least_one_token_to_compute(has_states: bool) -> None:
    index = make_index(has_states=has_states)
    cache(index, 3, checkpoints=(1, 2, 3) if has_states else ())
    for length in range(1, 64):
        match = find(index, TOKENS[:length])
        assert match.num_tokens == min(48, (length - 1) // PAGE_TOKENS * PAGE_TOKENS)


def test_a_hybrid_target_resumes_only_at_checkpoints() -> None:
    index = make_index(has_states=True)
    cache(index, 8, checkpoints=(4, 8))
    match = find(index, TOKENS[: 7 * PAGE_TOKENS])
    assert match.num_tokens == 4 * PAGE_TOKENS
    assert match.num_known_tokens == 6 * PAGE_TOKENS
    assert match.checkpoint is not None


def test_pages_that_lead_to_no_checkpoint_are_not_kept() -> None:
    index = make_index(has_states=True)
    cache(index, 8, checkpoints=(4,))
    assert index.num_cached_pages == 4
    assert find(index, TOKENS).num_known_tokens == 4 * PAGE_TOKENS


def test_a_tail_is_matched_by_its_tokens_and_its_page_is_to_be_copied() -> None:
    index = make_index(has_states=True)
    pages = cache(index, 4, num_tail=5)
    match = find(index, TOKENS)
    assert (match.num_tokens, match.pages, match.tail_page) == (69, tuple(pages[:4]), pages[4])
    other = [*TOKENS[:68], 999, *TOKENS[69:]]
    assert find(index, other) == Match(num_known_tokens=64)
    assert find(index, TOKENS[:69]).num_tokens == 0  # nothing would be left to compute


def test_the_longest_of_several_tails_is_taken() -> None:
    index = make_index(has_states=True)
    cache(index, 4, checkpoints=(4,), num_tail=5)
    cache(index, 4, num_tail=9)
    assert find(index, TOKENS).num_tokens == 64 + 9
    assert find(index, TOKENS[: 64 + 9]).num_tokens == 64 + 5


def test_the_page_of_another_request_replaces_a_copy_of_the_same_tokens() -> None:
    index = make_index()
    one, other = index.allocate(2), index.allocate(2)
    index.insert(KEYS, one, 0, 2)
    index.insert(KEYS, other, 0, 2)
    assert one == other
    index.release(one)
    index.release(other)
    index.check_integrity()
    assert index.num_cached_pages == 2


def test_the_least_recently_used_pages_go_first_and_followers_before_what_they_follow() -> None:
    index = make_index(num_pages=8)
    old = cache(index, 3)[:3]
    new = cache(index, 3, tokens=TOKENS[::-1])[:3]
    order = []
    for _ in range(6):
        free = index.pool.num_free
        taken = index.allocate(free + 1)
        order += [page for page in [*old, *new] if page in taken and page not in order]
    assert order == [*old[::-1], *new[::-1]]


def test_a_held_page_is_never_evicted() -> None:
    index = make_index(num_pages=4)
    cache(index, 3)
    match = find(index, TOKENS[: 2 * PAGE_TOKENS + 1])
    index.hold(match)
    assert index.num_available == 2
    assert not set(index.allocate(2)) & set(match.pages)
    index.check_integrity()


def test_checkpoints_go_least_recently_used_first() -> None:
    index = make_index(has_states=True, max_checkpoints=2)
    cache(index, 8, checkpoints=(4, 8))
    index.hold(short := find(index, TOKENS[:65]))
    index.release(short.pages)
    cache(index, 4, tokens=TOKENS[::-1], checkpoints=(4,))
    assert index.num_evicted_checkpoints == 1
    assert find(index, TOKENS).num_tokens == 64
    assert find(index, TOKENS[::-1]).num_tokens == 64
    assert index.num_cached_pages == 8  # pages 5 to 8 of the first request went with their checkpoint


def test_without_room_for_checkpoints_a_hybrid_target_caches_nothing() -> None:
    index = make_index(has_states=True, max_checkpoints=0)
    cache(index, 8, checkpoints=(4, 8))
    assert index.num_cached_pages == 0


def test_a_prefix_is_published_when_it_is_restorable_and_withdrawn_when_it_is_not() -> None:
    index = make_index(num_pages=12, has_states=True)
    cache(index, 8, checkpoints=(4, 8), num_tail=3)
    assert index.events.take() == ({KEYS[3], KEYS[7]}, set())
    index.release(index.allocate(12))
    assert index.events.take() == (set(), {KEYS[3], KEYS[7]})


def test_every_page_of_a_dense_target_is_published() -> None:
    index = make_index()
    cache(index, 3)
    assert index.events.take() == (set(KEYS[:3]), set())


def test_long_prefixes_are_let_go_of_without_recursion() -> None:
    tokens = [1] * (3000 * PAGE_TOKENS)
    index = make_index(num_pages=3001, has_states=True)
    cache(index, 3000, tokens=tokens, checkpoints=(3000,))
    index.allocate(1)
    index.allocate(1)
    assert index.num_cached_pages == 0
