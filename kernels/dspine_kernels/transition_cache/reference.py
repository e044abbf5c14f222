"""Transition cache and walk in plain torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_kernels.injection import InjectionWeights, receive, transfer_features


class Walk(NamedTuple):
    """What a walk chose, and the rows it chose from.

    The confidence is the row's largest probability and not the chosen token's: a verify length that depends on the
    proposals of its own position biases sampled output. At temperature 0 the two are equal.
    """

    tokens: Tensor  # int64 [num_blocks, num_proposals]
    probs: Tensor  # float32 [num_blocks, num_proposals, top_k]: softmax of the walked row / temperature
    confidence: Tensor  # float32 [num_blocks, num_proposals]: largest untempered probability of the row


def scores(
    states: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    codes: Tensor,
    lm_head: Tensor,
    weights: InjectionWeights,
    norm_weight: Tensor,
    norm_eps: float,
) -> Tensor:
    """norm(refine(state_j, code of k)) . lm_head[i] for every predecessor k and candidate i of every position j.

    `refine` is the last layer's injection with a known predecessor. Position 1 has the anchor as its only
    predecessor: all its rows are equal.

    Args:
        states: before the last layer's injection, `[num_blocks, num_proposals, hidden_size]`.
        anchors: int64 `[num_blocks]`.
        candidates: int64 `[num_blocks, num_proposals, top_k]`.
        codes: unit rows `[vocab_size, transfer_rank]`.
        lm_head: `[vocab_size, hidden_size]`.
        weights: the last layer's injection.
        norm_weight: the drafter's final norm, `[hidden_size]`.
        norm_eps: its epsilon.

    Returns:
        float32 `[num_blocks, num_proposals, top_k (predecessor), top_k (candidate)]`.
    """
    num_blocks, _, top_k = candidates.shape
    first = anchors.view(num_blocks, 1, 1).expand(num_blocks, 1, top_k)
    predecessors = math.sqrt(codes.shape[-1]) * codes[torch.cat((first, candidates[:, :-1]), 1)]
    features = transfer_features(states, weights.readout)
    refined = receive(states.unsqueeze(2), features.unsqueeze(2), predecessors.to(states.dtype), weights)
    normed = F.rms_norm(refined, norm_weight.shape, norm_weight, norm_eps)
    return torch.matmul(normed, lm_head[candidates].transpose(-1, -2)).float()


def walk(rows: Tensor, candidates: Tensor, temperatures: Tensor, noise: Tensor | None) -> Walk:
    """Choose a token at every position, left to right, each from the row of the token chosen before it.

    At temperature 0 the choice is the argmax of the row, else the argmax of row / temperature + noise: with Gumbel
    noise a sample of softmax(row / temperature).

    Args:
        rows: float32 `[num_blocks, num_proposals, top_k, top_k]`, or `[..., 1, top_k]` where positions do not
            depend on each other.
        candidates: int64 `[num_blocks, num_proposals, top_k]`.
        temperatures: float32 `[num_blocks]`.
        noise: float64 `[num_blocks, num_proposals, top_k]`, zero for blocks at temperature 0; None where every
            block is at temperature 0.

    Returns:
        Tokens, the walked rows as distributions (untempered at temperature 0) and confidences.
    """
    num_blocks, num_proposals, num_rows, _ = rows.shape
    divisor = torch.where(temperatures == 0, 1.0, temperatures).view(num_blocks, 1, 1)
    noisy = rows if noise is None else (rows / divisor.unsqueeze(-1)).double() + noise.unsqueeze(2)
    best = noisy.argmax(-1)  # [num_blocks, num_proposals, num_rows]
    chosen = best[:, :, 0] if num_rows == 1 else _follow(best)
    previous = F.pad(chosen[:, :-1], (1, 0)) if num_rows > 1 else torch.zeros_like(chosen)
    walked = rows.take_along_dim(previous.view(num_blocks, num_proposals, 1, 1), 2).squeeze(2)
    index = chosen.unsqueeze(-1)
    untempered = walked.softmax(-1)
    return Walk(
        tokens=candidates.gather(-1, index).squeeze(-1),
        probs=untempered if noise is None else (walked / divisor).softmax(-1),
        confidence=untempered.amax(-1),
    )


def _follow(best: Tensor) -> Tensor:
    """Chosen candidate index at every position, `[num_blocks, num_proposals]`; row 0 stands for the anchor."""
    chosen = best[:, 0, :1]
    path = [chosen]
    for position in range(1, best.shape[1]):
        chosen = best[:, position].gather(1, chosen)
        path.append(chosen)
    return torch.cat(path, 1)
