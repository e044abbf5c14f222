from __future__ import annotations

import pytest
import torch

from dspine_cluster.models.layers import RMSNorm, Rotary, ZeroCentredRMSNorm
from dspine_kernels import kv_write
from dspine_kernels.kv_write import HeadTransform, reference, triton

PAGE = 16
EPS = 1e-6


class Projected:
    """Random projections of `num_rows` rows as attention layers cut them, and pages of NaN."""

    def __init__(
        self,
        num_rows: int,
        heads: tuple[int, int],
        head_dim: int,
        rotary_dim: int,
        *,
        rounds_before_scale: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.positions = torch.randint(0, 1000, (num_rows,), generator=random)
        self.rotary = Rotary.at(self.positions, rotary_dim, 1e4, dtype)
        size = 2 * heads[1] * head_dim
        rows = torch.randn(num_rows, 2 * heads[0] * head_dim + size, generator=random).to(dtype)
        self.query = rows[:, :-size].view(num_rows, heads[0], -1)[..., :head_dim]
        self.key, self.value = (part.view(num_rows, -1, head_dim) for part in rows[:, -size:].chunk(2, 1))
        scales = torch.randn(2, head_dim, generator=random)
        query_scale, key_scale = scales.to(dtype) if rounds_before_scale else scales
        self.heads = HeadTransform(query_scale, key_scale, EPS, rounds_before_scale, *self.rotary)
        self.pages = torch.full((2, 3, PAGE, heads[1], head_dim), float("nan"), dtype=dtype)
        self.slots = torch.randperm(3 * PAGE, generator=random)[:num_rows]


@pytest.mark.parametrize("norm_class", [RMSNorm, ZeroCentredRMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_reference_places_heads_bit_for_bit_as_the_layers_do(
    norm_class: type[RMSNorm | ZeroCentredRMSNorm], dtype: torch.dtype
) -> None:
    x = Projected(7, (6, 2), 24, 8, rounds_before_scale=True, dtype=dtype)
    norm = norm_class(24, EPS).to(dtype)
    norm.weight.normal_(generator=torch.Generator().manual_seed(1))
    scale = norm.scale if isinstance(norm, ZeroCentredRMSNorm) else norm.weight
    heads = HeadTransform(scale, scale, EPS, isinstance(norm, RMSNorm), *x.rotary)
    query, key = kv_write.place(x.query, x.key, heads)
    assert torch.equal(query, kv_write.rotate(norm(x.query), *x.rotary))
    assert torch.equal(key, kv_write.rotate(norm(x.key), *x.rotary))


def test_the_reference_stores_the_rows_that_have_slots() -> None:
    x = Projected(5, (2, 1), 16, 16, rounds_before_scale=True)
    kv_write.write(x.query, x.key, x.value, x.heads, x.pages[0], x.pages[1], x.slots[:3])
    _, key = kv_write.place(x.query, x.key, x.heads)
    keys, values = x.pages.flatten(1, 2)
    assert torch.equal(keys[x.slots[:3]], key[:3])
    assert torch.equal(values[x.slots[:3]], x.value[:3])
    assert (~x.pages.isnan()).sum() == 2 * 3 * 16


@pytest.mark.parametrize(
    ("heads", "head_dim", "rotary_dim", "rounds_before_scale", "dtype", "tolerance"),
    [
        ((3, 1), 16, 4, False, torch.float32, 2e-6),
        ((2, 2), 32, 32, True, torch.float32, 2e-6),
        ((2, 1), 64, 16, False, torch.bfloat16, 3e-2),
        ((1, 1), 16, 16, True, torch.bfloat16, 3e-2),
    ],
)
def test_the_kernel_equals_the_reference(
    heads: tuple[int, int],
    head_dim: int,
    rotary_dim: int,
    rounds_before_scale: bool,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    x = Projected(4, heads, head_dim, rotary_dim, rounds_before_scale=rounds_before_scale, dtype=dtype)
    pages = x.pages.clone()
    inputs = (x.query, x.key, x.value, x.heads)
    got = triton.write(*inputs, pages[0], pages[1], x.slots[:3])
    wanted = reference.write(*inputs, x.pages[0], x.pages[1], x.slots[:3])
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(pages, x.pages, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_the_kernel_stores_nothing_at_negative_slots() -> None:
    x = Projected(2, (1, 1), 16, 16, rounds_before_scale=True)
    triton.write(x.query, x.key, x.value, x.heads, x.pages[0], x.pages[1], torch.tensor([-1, 20]))
    assert (~x.pages.isnan()).flatten(1, 2).any(-1).any(-1).nonzero().tolist() == [[0, 20], [1, 20]]


def test_the_kernel_places_heads_without_pages() -> None:
    x = Projected(2, (2, 1), 32, 16, rounds_before_scale=True)
    got, wanted = triton.place(x.query, x.key, x.heads), reference.place(x.query, x.key, x.heads)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(triton.place_keys(x.key, x.heads), wanted[1], atol=2e-6, rtol=2e-6)
