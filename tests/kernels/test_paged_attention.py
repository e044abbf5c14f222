from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspine_kernels import paged_attention

PAGE = 16


class Pages:
    """Keys and values of a few requests, scattered over shuffled pages of otherwise NaN pools."""

    def __init__(self, totals: list[int], num_kv_heads: int, head_dim: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        counts = [-(-total // PAGE) for total in totals]
        width = max(counts) + 1
        pages = torch.randperm(sum(counts) + 1, generator=random).tolist()
        unused = pages.pop()
        self.table = torch.full((len(totals), width), unused)
        self.key_pages = torch.full((sum(counts) + 1, PAGE, num_kv_heads, head_dim), float("nan"))
        self.value_pages = self.key_pages.clone()
        self.keys, self.values = [], []
        for row, (total, count) in enumerate(zip(totals, counts, strict=True)):
            own = [pages.pop() for _ in range(count)]
            self.table[row, :count] = torch.tensor(own)
            key = torch.randn(total, num_kv_heads, head_dim, generator=random)
            value = torch.randn(total, num_kv_heads, head_dim, generator=random)
            slots = torch.tensor([own[t // PAGE] * PAGE + t % PAGE for t in range(total)])
            paged_attention.write(key, value, self.key_pages, self.value_pages, slots)
            self.keys.append(key)
            self.values.append(value)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention of the last `len(query)` of `len(key)` tokens, every head by itself."""
    num_groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(num_groups, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    first = len(key) - len(query)
    future = torch.arange(len(key)) > torch.arange(first, len(key))[:, None]
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def largest_error(
    lengths: list[int], contexts: list[int], heads: tuple[int, int], head_dim: int, seed: int
) -> float:
    pages = Pages([n + c for n, c in zip(lengths, contexts, strict=True)], heads[1], head_dim, seed)
    query = torch.randn(sum(lengths), heads[0], head_dim, generator=torch.Generator().manual_seed(seed + 1))
    scale = head_dim**-0.5
    got = paged_attention.attend(
        query,
        pages.key_pages,
        pages.value_pages,
        paged_attention.plan(
            pages.table.tolist(), lengths, contexts, page_tokens=PAGE, device=torch.device("cpu")
        ),
        scale,
    )
    parts = torch.split(query, lengths)
    wanted = [plain_attention(*row, scale) for row in zip(parts, pages.keys, pages.values, strict=True)]
    return float((got - torch.cat(wanted)).abs().max())


@given(
    requests=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 50)), min_size=1, max_size=5),
    heads=st.sampled_from([(4, 2), (3, 3), (6, 1), (5, 5)]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_ragged_blocks_equal_plain_attention(
    requests: list[tuple[int, int]], heads: tuple[int, int], seed: int
) -> None:
    lengths, contexts = ([x[i] for x in requests] for i in (0, 1))
    assert largest_error(lengths, contexts, heads, 8, seed) < 1e-5


@pytest.mark.parametrize(
    ("lengths", "contexts"), [([40], [0]), ([100, 1, 17], [64, 31, 0]), ([16, 300], [16, 64])]
)
def test_prefill_chunks_equal_plain_attention(lengths: list[int], contexts: list[int]) -> None:
    assert largest_error(lengths, contexts, (4, 2), 32, seed=0) < 1e-5


@pytest.mark.parametrize("context", [0, 1, 14, 15, 16, 17, 31, 32])
def test_decode_across_page_borders_equals_plain_attention(context: int) -> None:
    assert largest_error([1], [context], (4, 2), 16, seed=context) < 1e-5


def test_write_changes_the_given_slots_only() -> None:
    key_pages, value_pages = torch.zeros(3, PAGE, 2, 4), torch.zeros(3, PAGE, 2, 4)
    key, value = torch.ones(2, 2, 4), torch.full((2, 2, 4), 2.0)
    paged_attention.write(key, value, key_pages, value_pages, torch.tensor([17, 47]))
    assert key_pages.sum(dim=(2, 3)).nonzero().tolist() == [[1, 1], [2, 15]]
    assert value_pages.sum() == 2 * key_pages.sum()
