from __future__ import annotations

import pytest
import torch

from dspine_kernels.draft_attention import paged, reference, triton
from tests.kernels.paged_cases import PAGE, PagedCase


def outputs(
    ranges: list[tuple[int, int]],
    *,
    block_size: int,
    heads: tuple[int, int],
    head_dim: int = 16,
    window: int | None = None,
    is_causal: bool = True,
    num_splits: int = 1,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel and the reference give for blocks of (start of the context, anchor)."""
    first_pages = [start // PAGE for start, _ in ranges]
    ends = [anchor - PAGE * first for (_, anchor), first in zip(ranges, first_pages, strict=True)]
    case = PagedCase([0] * len(ranges), ends, heads, head_dim, dtype=dtype)
    table = torch.full((len(ranges), max(map(len, case.pages)) + 1), 10**6)
    for row, own, (start, _) in zip(table, case.pages, ranges, strict=True):
        row[: len(own)] = torch.tensor(own)
        if own:
            case.key_pages[own[0], : start % PAGE] = float("nan")
            case.value_pages[own[0], : start % PAGE] = float("nan")
    random = torch.Generator().manual_seed(1)
    query = torch.randn(len(ranges), block_size, heads[0], head_dim, generator=random).to(dtype)
    key, value = torch.randn(2, len(ranges), block_size, heads[1], head_dim, generator=random).to(dtype)
    starts, anchors = torch.tensor(ranges).t().contiguous()
    args = (table, torch.tensor(first_pages), starts, anchors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "splits_for", lambda *_: num_splits)
        patch.setattr(torch, "empty", lambda shape, **options: torch.full(shape, float("nan"), **options))
        plan = paged.plan(*args, block_size=block_size, window=window, is_causal=is_causal)
        got = triton.attend(query, key, value, case.key_pages, case.value_pages, plan)
    wanted = reference.attend(
        query,
        key,
        value,
        case.key_pages,
        case.value_pages,
        reference.plan(
            *args,
            block_size=block_size,
            num_groups=heads[0] // heads[1],
            window=window,
            is_causal=is_causal,
            dtype=dtype,
        ),
    )
    return got, wanted


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 21, 3])
def test_blocks_over_ragged_contexts_equal_the_reference(window: int | None, is_causal: bool) -> None:
    got, wanted = outputs(
        [(0, 0), (3, 40), (37, 100)], block_size=5, heads=(3, 1), window=window, is_causal=is_causal
    )
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("window", "num_splits"), [(None, 3), (70, 2)])
def test_shares_of_a_long_context_add_up(window: int | None, num_splits: int) -> None:
    got, wanted = outputs(
        [(2, 140), (0, 5)], block_size=2, heads=(2, 1), window=window, num_splits=num_splits
    )
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)


def test_a_whole_block_with_more_heads_than_a_tile_has_rows() -> None:
    got, wanted = outputs([(0, 20)], block_size=16, heads=(18, 2), head_dim=32)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)


def test_half_precision_is_as_near_as_its_digits() -> None:
    got, wanted = outputs([(0, 20)], block_size=4, heads=(2, 2), dtype=torch.float16)
    torch.testing.assert_close(got, wanted, atol=2e-3, rtol=2e-3)
