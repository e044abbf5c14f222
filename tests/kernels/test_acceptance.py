from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dspine_kernels.acceptance import Accepted, BlockRows, reference, triton, triton_argmax

pytestmark = pytest.mark.usefixtures("dirty_memory")

Sampled = Callable[[Tensor, BlockRows, Tensor, Tensor, Tensor], Accepted]


IMPLEMENTATIONS = pytest.mark.parametrize(
    "accept", [reference.accept_sampled, triton.accept_sampled], ids=["reference", "triton"]
)


def rows_of(num_rows: list[int], vocab_size: int, generator: torch.Generator) -> BlockRows:
    proposals = torch.randint(0, vocab_size, (sum(num_rows),), generator=generator)
    return BlockRows(torch.tensor([0, *itertools.accumulate(num_rows)]), proposals, max(num_rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_argmax_is_the_lowest_id_of_the_largest(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(triton_argmax, "_CHUNK", 64)
    logits = torch.randn(5, 301, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[1, [7, 40, 300]] = 9.0
    logits[2, [300]] = 9.0
    logits[3] = -torch.inf
    logits[4, [130, 129]] = 9.0
    chosen = triton_argmax.argmax(logits)
    assert chosen.tolist() == [int(logits[0].argmax()), 7, 300, 0, 129]
    assert torch.equal(chosen, reference.argmax(logits))


def test_sampled_kernels_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "_CHUNK", 64)
    generator = torch.Generator().manual_seed(1)
    num_rows, top_k, vocab_size = [4, 1, 6, 2, 5, 3, 6, 1], 5, 301
    blocks = rows_of(num_rows, vocab_size, generator)
    probs = (3 * torch.randn(sum(num_rows), vocab_size, generator=generator)).softmax(-1)
    candidates = probs.topk(top_k).indices
    draft = (probs.gather(1, candidates) * torch.rand(candidates.shape, generator=generator)).softmax(-1)
    draft[blocks.starts[1:] - 1] = 0.0
    picks = torch.randint(0, top_k, (sum(num_rows), 1), generator=generator)
    blocks = BlockRows(blocks.starts, candidates.gather(1, picks)[:, 0], blocks.max_rows)
    seen = set()
    for seed in range(3):
        generator.manual_seed(seed)
        uniforms = torch.rand(sum(num_rows), generator=generator, dtype=torch.float64)
        actual = triton.accept_sampled(probs, blocks, candidates, draft, uniforms)
        expected = reference.accept_sampled(probs, blocks, candidates, draft, uniforms)
        assert actual.num_accepted.tolist() == expected.num_accepted.tolist()
        assert actual.tokens.tolist() == expected.tokens.tolist()
        seen.update(expected.num_accepted.tolist())
    assert {0, 1, 2} <= seen


CASES = {
    "q covers p": ([0.5, 0.3, 0.2, 0.0, 0.0], [0.1, 0.2, 0.3, 0.3, 0.1]),
    "q in part": ([0.1, 0.2, 0.3, 0.25, 0.15], [0.0, 0.7, 0.0, 0.3, 0.0]),
    "q equals p": ([0.4, 0.0, 0.0, 0.35, 0.25], [0.4, 0.0, 0.0, 0.35, 0.25]),
    "apart": ([0.6, 0.4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5, 0.0]),
}
EPSILON = 1e-5


def ends_of_steps(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Where the inverse of the cumulative weights is constant: both ends of each step, just inside, and its width."""
    widths = weights[weights > 0].double() / weights.double().sum()
    upper = widths.cumsum(0)
    return torch.stack([upper - widths + EPSILON, upper - EPSILON], 1).flatten(), widths


def decide(
    accept: Sampled, target: Tensor, draft: Tensor, proposal: int, of_proposal: float, of_token: Tensor
) -> Accepted:
    """Blocks of one proposal, one for each uniform number of the final token."""
    num_blocks = len(of_token)
    blocks = BlockRows(2 * torch.arange(num_blocks + 1), torch.tensor([proposal, 0]).repeat(num_blocks), 2)
    return accept(
        target.repeat(2 * num_blocks, 1),
        blocks,
        torch.arange(5).repeat(2 * num_blocks, 1),
        torch.stack([draft, torch.zeros(5)]).repeat(num_blocks, 1),
        torch.stack([torch.full_like(of_token, of_proposal), of_token], 1).flatten(),
    )


def mass_of_tokens(accepted: Accepted, widths: Tensor) -> Tensor:
    """The share of uniform numbers that gives each token, where both ends of a step give the same."""
    lower, upper = accepted.tokens.view(-1, 2).unbind(1)
    assert torch.equal(lower, upper), "the steps are elsewhere"
    return torch.zeros(5, dtype=torch.float64).index_add(0, lower, widths)


@pytest.mark.parametrize(
    ("accept", "case"),
    [
        *((reference.accept_sampled, case) for case in CASES),
        *((triton.accept_sampled, case) for case in ("q in part", "apart")),
    ],
)
def test_integrated_over_the_uniform_numbers_a_token_has_the_target_s_distribution(
    accept: Sampled, case: str
) -> None:
    target, draft = (torch.tensor(row) for row in CASES[case])
    total = torch.zeros(5, dtype=torch.float64)
    for proposal in draft.nonzero()[:, 0].tolist():
        ratio = min(1.0, float(target[proposal] / draft[proposal]))
        if ratio > 0.0:
            points, widths = ends_of_steps(target)
            accepted = decide(accept, target, draft, proposal, ratio - EPSILON, points)
            assert accepted.num_accepted.eq(1).all()
            torch.testing.assert_close(mass_of_tokens(accepted, widths), target.double())
            total[proposal] += draft[proposal].double() * ratio
        if ratio < 1.0:
            points, widths = ends_of_steps((target - draft).clamp(min=0.0))
            rejected = decide(accept, target, draft, proposal, ratio + EPSILON, points)
            assert rejected.num_accepted.eq(0).all()
            total += draft[proposal].double() * (1.0 - ratio) * mass_of_tokens(rejected, widths)
    torch.testing.assert_close(total, target.double())


@IMPLEMENTATIONS
def test_tokens_without_probability_are_not_sampled_at_the_ends(accept: Sampled) -> None:
    probs = torch.tensor([[0.0, 1e-30, 0.0, 1.0, 0.0]]).repeat(3, 1)
    blocks = BlockRows(torch.arange(4), torch.zeros(3, dtype=torch.int64), 1)
    uniforms = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    nothing = torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1)
    accepted = accept(probs, blocks, *nothing, uniforms)
    assert accepted.tokens.tolist() == [1, 3, 3]


@IMPLEMENTATIONS
def test_acceptance_at_the_ends(accept: Sampled) -> None:
    """(p, q, uniform number) of a proposal, and whether it is accepted."""
    tiny = 2.0**-149
    cases = [
        (0.0, 1e-30, 0.0, 0),
        (0.0, 0.0, 0.0, 0),
        (tiny, tiny, 0.9, 1),
        (0.3, 0.0, 0.9, 1),
        (0.5, 1.0, 0.5, 0),
    ]
    num_blocks = len(cases)
    targets, drafts, uniforms, expected = zip(*cases, strict=True)
    probs = torch.zeros(2 * num_blocks, 3)
    probs[:, 2] = 1.0
    probs[::2, 1] = torch.tensor(targets)
    draft = torch.zeros(2 * num_blocks, 1)
    draft[::2, 0] = torch.tensor(drafts)
    blocks = BlockRows(2 * torch.arange(num_blocks + 1), torch.tensor([1, 0]).repeat(num_blocks), 2)
    numbers = torch.tensor(uniforms, dtype=torch.float64).repeat_interleave(2)
    accepted = accept(probs, blocks, torch.ones(2 * num_blocks, 1, dtype=torch.int64), draft, numbers)
    assert accepted.num_accepted.tolist() == list(expected)


@IMPLEMENTATIONS
def test_a_residual_of_zero_samples_the_target(accept: Sampled) -> None:
    blocks = BlockRows(torch.tensor([0, 2]), torch.tensor([2, 0]), 2)
    candidates = torch.tensor([[0, 1, 2]]).repeat(2, 1)
    draft = torch.tensor([[0.5, 0.5, 0.2], [0.0, 0.0, 0.0]])
    probs = torch.tensor([[0.5, 0.5, 0.0]]).repeat(2, 1)
    for uniform, token in ((0.2, 0), (0.7, 1)):
        accepted = accept(probs, blocks, candidates, draft, torch.tensor([0.1, uniform], dtype=torch.float64))
        assert [t.item() for t in accepted] == [0, token]


def test_blocks_without_rows_are_left_alone() -> None:
    blocks = BlockRows(torch.tensor([0, 0, 2, 2]), torch.tensor([1, 0]), 2)
    nothing = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[1.0], [0.0]])
    uniforms = torch.tensor([0.3, 0.6], dtype=torch.float64)
    accepted = triton.accept_sampled(torch.eye(3)[[1, 2]], blocks, *nothing, uniforms)
    untouched = torch.iinfo(torch.int64).max
    assert accepted.tokens.tolist() == [untouched, 2, untouched]
