from __future__ import annotations

import math

import torch
from torch import Tensor

from dspine_kernels.injection import InjectionWeights, inject, receive, transfer_features

RANK, HIDDEN, MESSAGE = 6, 8, 5
GENERATOR = torch.Generator().manual_seed(0)
WEIGHTS = InjectionWeights(
    readout=torch.randn(RANK, HIDDEN, generator=GENERATOR),
    write=torch.randn(HIDDEN, MESSAGE, generator=GENERATOR),
    message=torch.randn(MESSAGE, RANK, generator=GENERATOR),
    receiver_gate=torch.randn(MESSAGE, RANK, generator=GENERATOR),
    predecessor_gate=torch.randn(MESSAGE, RANK, generator=GENERATOR),
    bias=torch.randn(MESSAGE, generator=GENERATOR),
)
BLOCKS = torch.randn(3, 5, HIDDEN, generator=GENERATOR)
CODES = torch.randn(3, 4, RANK, generator=GENERATOR)


def feature(h: Tensor) -> Tensor:
    projected = WEIGHTS.readout @ h
    return projected / projected.square().mean().sqrt()


def injected(h: Tensor, predecessor: Tensor) -> Tensor:
    """The formula of adjacent injection for one state; ||h|| / sqrt(H) is the state's rms."""
    gate = torch.sigmoid(
        WEIGHTS.receiver_gate @ feature(h) + WEIGHTS.predecessor_gate @ predecessor + WEIGHTS.bias
    )
    return h + h.square().mean().sqrt() * (WEIGHTS.write @ (gate * (WEIGHTS.message @ predecessor)))


def test_each_proposal_receives_from_the_state_before_it_as_it_was() -> None:
    out = inject(BLOCKS, CODES[:, :1], WEIGHTS)
    for b, block in enumerate(BLOCKS):
        predecessors = [math.sqrt(RANK) * CODES[b, 0], *(feature(block[j]) for j in range(1, 4))]
        for j in range(1, 5):
            torch.testing.assert_close(
                out[b, j], injected(block[j], predecessors[j - 1]), atol=1e-5, rtol=1e-4
            )


def test_the_anchor_is_unchanged() -> None:
    assert torch.equal(inject(BLOCKS, CODES[:, :1], WEIGHTS)[:, 0], BLOCKS[:, 0])


def test_known_predecessors_replace_features_where_marked() -> None:
    is_known = torch.tensor([[True, False, True, True]]).expand(3, -1)
    out = inject(BLOCKS, CODES, WEIGHTS, is_known)
    free = inject(BLOCKS, CODES[:, :1], WEIGHTS)
    torch.testing.assert_close(out[:, :3], free[:, :3])
    for b, block in enumerate(BLOCKS):
        for j in (3, 4):
            expected = injected(block[j], math.sqrt(RANK) * CODES[b, j - 1])
            torch.testing.assert_close(out[b, j], expected, atol=1e-5, rtol=1e-4)


def test_one_state_receives_from_several_predecessors_at_once() -> None:
    h, predecessors = BLOCKS[0, 1], CODES[0]
    out = receive(h[None], transfer_features(h, WEIGHTS.readout)[None], predecessors, WEIGHTS)
    for k in range(4):
        torch.testing.assert_close(out[k], injected(h, predecessors[k]), atol=1e-5, rtol=1e-4)


def test_a_zero_state_has_finite_gradients() -> None:
    hidden = torch.zeros(1, 5, HIDDEN, requires_grad=True)
    (gradient,) = torch.autograd.grad(inject(hidden, CODES[:1, :1], WEIGHTS).sum(), hidden)
    assert torch.isfinite(gradient).all()
