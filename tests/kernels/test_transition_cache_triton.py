"""The Triton kernels in the interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dspine_kernels.injection import InjectionWeights
from dspine_kernels.transition_cache import Walk, reference, triton, triton_walk

pytestmark = pytest.mark.usefixtures("dirty_memory")

RANK, HIDDEN, MESSAGE, VOCAB = 24, 48, 20, 301


def draw(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=generator)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 0.05)], ids=["fp32", "fp16"]
)
@pytest.mark.parametrize(("num_blocks", "num_proposals", "top_k"), [(2, 3, 16), (1, 4, 5)])
def test_the_kernels_score_as_the_reference(
    num_blocks: int, num_proposals: int, top_k: int, dtype: torch.dtype, tolerance: float
) -> None:
    """fp16 stands for bf16, of which the interpreter makes no products."""
    g = torch.Generator().manual_seed(top_k)
    weights = InjectionWeights(
        readout=draw(g, RANK, HIDDEN).to(dtype),
        write=draw(g, HIDDEN, MESSAGE, scale=0.3).to(dtype),
        message=draw(g, MESSAGE, RANK, scale=0.3).to(dtype),
        receiver_gate=draw(g, MESSAGE, RANK, scale=0.3).to(dtype),
        predecessor_gate=draw(g, MESSAGE, RANK, scale=0.3).to(dtype),
        bias=draw(g, MESSAGE).to(dtype),
    )
    codes = torch.nn.functional.normalize(draw(g, VOCAB, RANK), dim=-1).to(dtype)
    lm_head = draw(g, VOCAB, HIDDEN, scale=0.3).to(dtype)
    norm_weight = torch.rand(HIDDEN, generator=g).to(dtype)
    block = draw(g, num_blocks, num_proposals + 1, HIDDEN).to(dtype)
    states = block[:, 1:]  # as a drafter has them: without the anchors, not contiguous
    anchors = torch.randint(0, VOCAB, (num_blocks,), generator=g)
    candidates = draw(g, num_blocks, num_proposals, VOCAB).topk(top_k).indices
    arguments = (anchors, candidates, codes, lm_head, weights, norm_weight, 1e-6)
    actual = triton.scores(states, *arguments)
    expected = reference.scores(states, *arguments)
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def assert_same_walk(actual: Walk, expected: Walk) -> None:
    assert torch.equal(actual.tokens, expected.tokens)
    torch.testing.assert_close(actual.probs, expected.probs)
    torch.testing.assert_close(actual.confidence, expected.confidence)


@pytest.mark.parametrize("is_independent", [False, True])
@pytest.mark.parametrize(("num_proposals", "top_k"), [(15, 16), (3, 5), (1, 1)])
def test_the_kernel_walks_as_the_reference(num_proposals: int, top_k: int, is_independent: bool) -> None:
    g = torch.Generator().manual_seed(num_proposals)
    temperatures = torch.tensor([0.0, 0.7, 2.0])
    rows = draw(g, 3, num_proposals, 1 if is_independent else top_k, top_k, scale=2.0)
    candidates = torch.randint(0, 300_000, (3, num_proposals, top_k), generator=g)
    uniform = torch.rand(candidates.shape, generator=g, dtype=torch.float64)
    noise = torch.where(temperatures[:, None, None] > 0, -torch.log(-torch.log(uniform)), 0.0)
    assert_same_walk(
        triton_walk.walk(rows, candidates, temperatures, noise),
        reference.walk(rows, candidates, temperatures, noise),
    )
    greedy = torch.zeros(3)
    assert_same_walk(
        triton_walk.walk(rows, candidates, greedy, None), reference.walk(rows, candidates, greedy, None)
    )


def test_the_lowest_index_of_equal_scores_is_walked() -> None:
    rows = torch.zeros(1, 4, 3, 3)
    rows[:, 1:, 0, 1:] = 1.0
    rows[:, 1:, 1, ::2] = 2.0
    candidates = torch.arange(12).view(1, 4, 3)
    walked = triton_walk.walk(rows, candidates, torch.zeros(1), None)
    assert walked.tokens.tolist() == [[0, 4, 6, 10]]


def test_no_blocks_give_no_walks() -> None:
    walked = triton_walk.walk(
        torch.zeros(0, 3, 4, 4), torch.zeros(0, 3, 4, dtype=torch.int64), torch.zeros(0), None
    )
    assert [tuple(t.shape) for t in walked] == [(0, 3), (0, 3, 4), (0, 3)]
