from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspine_kernels.draft_attention import attend, plan, reference

HEAD_DIM = 4


@st.composite
def contexts(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(start, anchor position) of 1 to 4 blocks"""
    anchors = draw(st.lists(st.integers(0, 70), min_size=1, max_size=4))
    return [(draw(st.integers(0, anchor)), anchor) for anchor in anchors]


def brute_force(
    query: Tensor,
    position: int,
    keys: Tensor,
    values: Tensor,
    positions: list[int],
    last: int,
    window: int | None,
) -> Tensor:
    """Attention of one query of one head."""
    seen = [i for i, p in enumerate(positions) if p <= last and (window is None or position - p < window)]
    out: Tensor = (keys[seen] @ query / math.sqrt(HEAD_DIM)).softmax(0) @ values[seen]
    return out


@settings(max_examples=60)
@given(
    ranges=contexts(),
    block_size=st.integers(2, 6),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3), (6, 2)]),
    window=st.one_of(st.none(), st.integers(1, 40)),
    is_causal=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_brute_force_over_ragged_contexts_whose_unused_slots_hold_nan(
    ranges: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    window: int | None,
    is_causal: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    num_blocks = len(ranges)
    first_pages = [start // 16 for start, _ in ranges]
    counts = [-(-anchor // 16) - first for (_, anchor), first in zip(ranges, first_pages, strict=True)]
    order = torch.randperm(sum(counts) + 1, generator=generator).tolist()
    pages = torch.full((2, sum(counts) + 1, 16, num_kv_heads, HEAD_DIM), torch.nan)
    table = torch.full((num_blocks, max(counts) + 1), order[-1], dtype=torch.int32)
    contexts_kv = []
    for b, (start, anchor) in enumerate(ranges):
        mine = [order.pop(0) for _ in range(counts[b])]
        table[b, : counts[b]] = torch.tensor(mine, dtype=torch.int32)
        kv = torch.randn(2, anchor - start, num_kv_heads, HEAD_DIM, generator=generator)
        for i, position in enumerate(range(start, anchor)):
            pages[:, mine[position // 16 - first_pages[b]], position % 16] = kv[:, i]
        contexts_kv.append(kv)
    query = torch.randn(num_blocks, block_size, num_heads, HEAD_DIM, generator=generator)
    own = torch.randn(2, num_blocks, block_size, num_kv_heads, HEAD_DIM, generator=generator)

    block_plan = plan(
        table,
        torch.tensor(first_pages),
        torch.tensor([start for start, _ in ranges]),
        torch.tensor([anchor for _, anchor in ranges]),
        block_size=block_size,
        num_groups=num_heads // num_kv_heads,
        window=window,
        is_causal=is_causal,
        dtype=torch.float32,
    )
    out = attend(query, own[0], own[1], pages[0], pages[1], block_plan)

    for b, (start, anchor) in enumerate(ranges):
        keys, values = torch.cat((contexts_kv[b], own[:, b]), 1)
        positions = [*range(start, anchor), *range(anchor, anchor + block_size)]
        for j in range(block_size):
            last = anchor + (j if is_causal else block_size)
            for head in range(num_heads):
                kv_head = head * num_kv_heads // num_heads
                expected = brute_force(
                    query[b, j, head],
                    anchor + j,
                    keys[:, kv_head],
                    values[:, kv_head],
                    positions,
                    last,
                    window,
                )
                torch.testing.assert_close(out[b, j, head], expected, atol=1e-5, rtol=1e-4)


def test_a_windowed_plan_reads_only_the_slots_its_window_reaches() -> None:
    table = torch.arange(64).view(1, 64)
    block_plan = reference.plan(
        table,
        torch.tensor([0]),
        torch.tensor([0]),
        torch.tensor([1000]),
        block_size=16,
        num_groups=1,
        window=100,
        is_causal=True,
        dtype=torch.float32,
    )
    assert block_plan.slots.tolist() == list(range(901, 1000))
