"""The Triton kernels in the interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dspine_kernels import injection
from dspine_kernels.injection import InjectionWeights, inject
from dspine_kernels.injection.triton import inject_after_anchors

RANK, HIDDEN, MESSAGE, VOCAB = 24, 48, 20, 301


def random_weights(dtype: torch.dtype, *, rank: int = RANK, message_size: int = MESSAGE) -> InjectionWeights:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "readout": (rank, HIDDEN),
        "write": (HIDDEN, message_size),
        "message": (message_size, rank),
        "receiver_gate": (message_size, rank),
        "predecessor_gate": (message_size, rank),
        "bias": (message_size,),
    }
    return InjectionWeights(
        **{name: (0.3 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}
    )


def unit_codes(dtype: torch.dtype, rank: int = RANK) -> Tensor:
    codes = torch.randn(VOCAB, rank, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.normalize(codes, dim=-1).to(dtype)


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 5e-3)], ids=["fp32", "fp16"]
)
@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 2), (3, 5)])
def test_the_kernels_inject_as_the_reference(
    num_blocks: int, block_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    """fp16 stands for bf16, of which the interpreter makes no products."""
    hidden = torch.randn(num_blocks, block_size, HIDDEN).to(dtype)
    anchors = torch.randint(0, VOCAB, (num_blocks,))
    weights, codes = random_weights(dtype), unit_codes(dtype)
    actual = inject_after_anchors(hidden, anchors, codes, weights)
    expected = inject(hidden, codes[anchors].unsqueeze(1), weights)
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(actual[:, 0], hidden[:, 0])


@pytest.mark.usefixtures("dirty_memory")
def test_sizes_that_need_several_tiles() -> None:
    hidden, anchors = torch.randn(2, 3, HIDDEN), torch.tensor([300, 0])
    weights, codes = random_weights(torch.float32, rank=150, message_size=137), unit_codes(torch.float32, 150)
    expected = inject(hidden, codes[anchors].unsqueeze(1), weights)
    torch.testing.assert_close(inject_after_anchors(hidden, anchors, codes, weights), expected)


def test_states_of_zeros_stay_finite() -> None:
    hidden = torch.zeros(1, 4, HIDDEN)
    out = inject_after_anchors(
        hidden, torch.tensor([5]), unit_codes(torch.float32), random_weights(torch.float32)
    )
    assert torch.equal(out, hidden)


def test_no_blocks_give_no_states() -> None:
    hidden = torch.zeros(0, 4, HIDDEN)
    anchors = torch.zeros(0, dtype=torch.int64)
    out = inject_after_anchors(hidden, anchors, unit_codes(torch.float32), random_weights(torch.float32))
    assert out.shape == hidden.shape


def test_on_cpu_the_reference_injects_after_the_anchors() -> None:
    hidden, anchors = torch.randn(2, 4, HIDDEN), torch.tensor([7, 9])
    weights, codes = random_weights(torch.float32), unit_codes(torch.float32)
    expected = inject(hidden, codes[anchors].unsqueeze(1), weights)
    assert torch.equal(injection.inject_after_anchors(hidden, anchors, codes, weights), expected)
