from __future__ import annotations

import struct
import time
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.page_hash import page_keys, root_key
from dspine_cluster.types import PAGE_TOKENS

ROOT = root_key("target", "float32")
tokens_lists = st.lists(st.integers(0, 2**31 - 1), max_size=5 * PAGE_TOKENS)


@given(tokens_lists)
def test_a_key_is_the_hash_of_the_key_before_it_and_of_the_pages_tokens(tokens: list[int]) -> None:
    expected, key = [], ROOT
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        page = struct.pack("<16i", *tokens[start : start + PAGE_TOKENS])
        key = blake2b(key + page, digest_size=16).digest()
        expected.append(key)
    assert page_keys(tokens, ROOT) == expected


@given(tokens_lists, st.integers(0, 5))
def test_keys_known_already_are_continued(tokens: list[int], num_known: int) -> None:
    keys = page_keys(tokens, ROOT)
    assert page_keys(tokens, ROOT, keys[:num_known]) == keys


@given(tokens_lists, st.integers(0, 5))
def test_more_known_keys_than_full_pages_are_cut(tokens: list[int], num_pages: int) -> None:
    keys = page_keys(tokens, ROOT)
    assert page_keys(tokens[: num_pages * PAGE_TOKENS], ROOT, keys) == keys[:num_pages]


@given(st.lists(st.integers(0, 1), max_size=5 * PAGE_TOKENS), st.data())
def test_prefixes_share_exactly_the_keys_of_their_equal_pages(one: list[int], data: st.DataObject) -> None:
    num_shared = data.draw(st.integers(0, len(one)))
    other = [*one[:num_shared], *data.draw(st.lists(st.integers(0, 1), max_size=2 * PAGE_TOKENS))]
    for number, keys in enumerate(zip(page_keys(one, ROOT), page_keys(other, ROOT), strict=False), 1):
        end = number * PAGE_TOKENS
        assert (keys[0] == keys[1]) == (one[:end] == other[:end])


def test_a_page_that_is_not_full_has_no_key() -> None:
    assert page_keys(range(PAGE_TOKENS - 1), ROOT) == []
    assert len(page_keys(range(2 * PAGE_TOKENS + 15), ROOT)) == 2


def test_a_changed_token_changes_its_page_and_every_page_after_it() -> None:
    tokens = list(range(4 * PAGE_TOKENS))
    changed = [*tokens]
    changed[PAGE_TOKENS + 3] += 1
    before, after = page_keys(tokens, ROOT), page_keys(changed, ROOT)
    assert before[0] == after[0]
    assert not set(before[1:]) & set(after[1:])


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_roots_are_equal_only_for_equal_parts(one: list[str], other: list[str]) -> None:
    assert (root_key(*one) == root_key(*other)) == (one == other)


def test_parts_are_not_merely_joined() -> None:
    assert len({root_key("ab", "c"), root_key("a", "bc"), root_key("abc"), root_key("abc", "")}) == 4


def test_another_root_shares_no_key() -> None:
    tokens = range(3 * PAGE_TOKENS)
    assert not set(page_keys(tokens, ROOT)) & set(page_keys(tokens, root_key("target", "float32", "tenant")))


def test_a_hundred_thousand_tokens_take_well_under_a_second() -> None:
    tokens = [7] * 100_000
    start_s = time.perf_counter()
    page_keys(tokens, ROOT)
    assert time.perf_counter() - start_s < 1.0
