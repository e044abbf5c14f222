from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspine_kernels.injection import InjectionWeights, receive, transfer_features
from dspine_kernels.transition_cache import Walk, scores, walk

RANK, HIDDEN, MESSAGE, VOCAB = 6, 8, 5, 30


def random_weights(generator: torch.Generator) -> InjectionWeights:
    shapes = {
        "readout": (RANK, HIDDEN),
        "write": (HIDDEN, MESSAGE),
        "message": (MESSAGE, RANK),
        "receiver_gate": (MESSAGE, RANK),
        "predecessor_gate": (MESSAGE, RANK),
        "bias": (MESSAGE,),
    }
    return InjectionWeights(
        **{name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    )


def choose_one_by_one(
    rows: Tensor, candidates: Tensor, temperature: float, noise: Tensor | None
) -> list[int]:
    """The definition of the walk for one block."""
    index, tokens = 0, []
    for position in range(rows.shape[0]):
        row = rows[position, min(index, rows.shape[1] - 1)]
        if temperature > 0:
            assert noise is not None
            row = (row / temperature).log_softmax(-1).double() + noise[position]
        index = int(row.argmax())
        tokens.append(int(candidates[position, index]))
    return tokens


@given(seed=st.integers(0, 10_000), num_proposals=st.integers(1, 6), top_k=st.integers(1, 5))
def test_every_row_scores_the_refined_state_of_its_predecessor(
    seed: int, num_proposals: int, top_k: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(generator)
    codes = torch.randn(VOCAB, RANK, generator=generator)
    lm_head = torch.randn(VOCAB, HIDDEN, generator=generator)
    states = torch.randn(2, num_proposals, HIDDEN, generator=generator)
    norm_weight = torch.rand(HIDDEN, generator=generator)
    anchors = torch.tensor([3, 4])
    candidates = torch.stack(
        [torch.randperm(VOCAB, generator=generator)[:top_k] for _ in range(2 * num_proposals)]
    ).view(2, num_proposals, top_k)
    actual = scores(states, anchors, candidates, codes, lm_head, weights, norm_weight, 1e-6)
    for b in range(2):
        for j in range(num_proposals):
            for k in range(top_k):
                predecessor = int(anchors[b]) if j == 0 else int(candidates[b, j - 1, k])
                code = math.sqrt(RANK) * codes[predecessor]
                h = states[b, j]
                refined = receive(h, transfer_features(h, weights.readout), code, weights)
                normed = refined / (refined.pow(2).mean() + 1e-6).sqrt() * norm_weight
                expected = lm_head[candidates[b, j]] @ normed
                torch.testing.assert_close(actual[b, j, k], expected, atol=1e-4, rtol=1e-4)


@given(
    seed=st.integers(0, 10_000),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=1, max_size=4),
    num_proposals=st.integers(1, 7),
    top_k=st.integers(1, 6),
    is_independent=st.booleans(),
)
def test_a_walk_chooses_one_by_one_as_defined(
    seed: int, temperatures: list[float], num_proposals: int, top_k: int, is_independent: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_blocks = len(temperatures)
    shape = (num_blocks, num_proposals, 1 if is_independent else top_k, top_k)
    rows = 2 * torch.randn(shape, generator=generator)
    candidates = torch.randint(0, 1000, (num_blocks, num_proposals, top_k), generator=generator)
    noise = None
    if any(temperatures):
        uniform = torch.rand(candidates.shape, generator=generator, dtype=torch.float64)
        is_sampled = torch.tensor(temperatures).view(-1, 1, 1) > 0
        noise = torch.where(is_sampled, -torch.log(-torch.log(uniform)), 0.0)
    walked = walk(rows, candidates, torch.tensor(temperatures), noise)
    for b, temperature in enumerate(temperatures):
        of_block = None if noise is None else noise[b]
        assert walked.tokens[b].tolist() == choose_one_by_one(rows[b], candidates[b], temperature, of_block)


def three_by_three(temperature: float) -> tuple[Walk, Tensor]:
    """A walk over fixed rows whose greedy path is candidates 2, 0, 1; and its rows."""
    rows = torch.zeros(1, 3, 3, 3)
    rows[0, 0, :, 2] = 1.0
    rows[0, 1, 2] = torch.tensor([3.0, 1.0, 2.0])
    rows[0, 2, 0] = torch.tensor([0.0, 5.0, 1.0])
    noise = torch.zeros(1, 3, 3, dtype=torch.float64) if temperature else None
    return walk(rows, torch.arange(9).view(1, 3, 3), torch.tensor([temperature]), noise), rows


def test_probs_and_confidence_are_those_of_the_walked_rows() -> None:
    walked, rows = three_by_three(temperature=0.5)
    path = torch.stack([rows[0, 0, 0], rows[0, 1, 2], rows[0, 2, 0]])
    assert walked.tokens.tolist() == [[2, 3, 7]]
    torch.testing.assert_close(walked.probs[0], (path / 0.5).softmax(-1))
    torch.testing.assert_close(walked.confidence[0], path.softmax(-1).amax(-1))


def test_confidence_is_a_function_of_the_proposals_before() -> None:
    rows, candidates = torch.randn(1, 4, 3, 3), torch.arange(12).view(1, 4, 3)
    noise = torch.zeros(3, 4, 3, dtype=torch.float64)
    noise[torch.arange(3), 3, torch.arange(3)] = 100.0
    last = walk(rows.expand(3, -1, -1, -1), candidates.expand(3, -1, -1), torch.ones(3), noise)
    assert last.tokens[:, 3].tolist() == [9, 10, 11]
    assert torch.equal(last.confidence, last.confidence[:1].expand(3, -1))


def test_greedy_probs_are_untempered() -> None:
    greedy, _ = three_by_three(temperature=0.0)
    untempered, _ = three_by_three(temperature=1.0)
    torch.testing.assert_close(greedy.probs, untempered.probs)
