"""Every pass fits its bucket, and costs follow from its tokens alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.graph_buckets import GraphBucket, GraphBuckets, table_pages

WIDTHS = st.lists(st.integers(1, 16), min_size=1, max_size=40)


@given(widths=WIDTHS, max_requests=st.integers(1, 40))
def test_a_bucket_holds_its_pass(widths: list[int], max_requests: int) -> None:
    bucket = GraphBuckets(max_requests, 16).bucket_of(widths, replays=True)
    if bucket is None:
        assert len(widths) > max_requests or sum(widths) > 1024
        return
    assert len(widths) <= bucket.num_requests <= max_requests
    assert bucket.num_tokens >= max(4, sum(widths))
    assert bucket.max_width >= max(widths)


@given(widths=WIDTHS)
def test_the_tokens_of_a_bucket_are_the_step_that_a_cost_model_takes(widths: list[int]) -> None:
    buckets = GraphBuckets(40, 16)
    bucket = buckets.bucket_of(widths, replays=True)
    assert bucket is not None
    assert bucket.num_tokens == next(size for size in buckets.token_sizes if size >= sum(widths))


@given(widths=WIDTHS)
def test_padding_a_pass_to_its_bucket_does_not_move_it_to_another(widths: list[int]) -> None:
    buckets = GraphBuckets(64, 16)
    bucket = buckets.bucket_of(widths, replays=True)
    assert bucket is not None
    spare = bucket.num_requests - len(widths)
    padded = [*widths, *[min(widths)] * min(spare, (bucket.num_tokens - sum(widths)) // min(widths))]
    assert buckets.bucket_of(padded, replays=True) == bucket


def test_padding_is_never_more_than_as_much_again_beyond_a_few_tokens() -> None:
    buckets = GraphBuckets(64, 16)
    for num_tokens in range(4, 1024):
        widths = [16] * (num_tokens // 16) + [num_tokens % 16] * (num_tokens % 16 > 0)
        bucket = buckets.bucket_of(widths, replays=True)
        assert bucket is not None
        assert bucket.num_tokens < 2 * num_tokens


def test_plain_decoding_has_buckets_of_its_own() -> None:
    buckets = GraphBuckets(32, 16)
    assert buckets.bucket_of([1] * 5, replays=False) == GraphBucket(8, 8, max_width=1, replays=False)
    assert buckets.bucket_of([1] * 5, replays=True) == GraphBucket(8, 8, max_width=1, replays=True)
    assert buckets.bucket_of([1, 1, 1, 1, 2], replays=False) == GraphBucket(8, 8, max_width=16, replays=True)


def test_what_is_too_large_or_empty_has_none() -> None:
    buckets = GraphBuckets(2, 16)
    assert buckets.token_sizes[-1] == 32
    for widths in ([], [1, 1, 1], [17], [0]):
        assert buckets.bucket_of(widths, replays=True) is None


def test_the_common_buckets_come_largest_first_and_cover_full_blocks_and_plain_decoding() -> None:
    buckets = GraphBuckets(32, 16)
    common = buckets.common()
    assert len(set(common)) == len(common) == 12
    assert [b.num_requests for b in common] == sorted((b.num_requests for b in common), reverse=True)
    assert buckets.bucket_of([16] * 32, replays=True) == common[0]
    assert buckets.bucket_of([1], replays=False) in common


@given(num_pages=st.integers(0, 5000))
def test_page_tables_have_few_widths(num_pages: int) -> None:
    width = table_pages(num_pages)
    assert num_pages <= width
    assert width == 128 or (width < 2 * num_pages and width & (width - 1) == 0)
