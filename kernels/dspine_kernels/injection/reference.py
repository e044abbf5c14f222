"""Adjacent injection in plain torch; differentiable."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class InjectionWeights:
    """One layer's injection. Only `readout` and `write` differ between layers."""

    readout: Tensor  # [transfer_rank, hidden_size]
    write: Tensor  # [hidden_size, message_size]
    message: Tensor  # [message_size, transfer_rank]
    receiver_gate: Tensor  # [message_size, transfer_rank]
    predecessor_gate: Tensor  # [message_size, transfer_rank]
    bias: Tensor  # [message_size]


def transfer_features(hidden: Tensor, readout: Tensor) -> Tensor:
    """sqrt(R) * normalize(readout(hidden)): `[..., hidden_size]` to `[..., transfer_rank]`."""
    projected = F.linear(hidden, readout).float()
    return (F.normalize(projected, dim=-1) * math.sqrt(projected.shape[-1])).to(hidden.dtype)


def receive(hidden: Tensor, receiver: Tensor, predecessor: Tensor, weights: InjectionWeights) -> Tensor:
    """h + (||h|| / sqrt(H)) * write(gate * message(p)), gate = sigmoid(W_recv f + W_pred p + b).

    Args:
        hidden: h, `[..., hidden_size]`.
        receiver: f, the transfer features of `hidden`, `[..., transfer_rank]`.
        predecessor: p, features or scaled codes of the tokens before, `[..., transfer_rank]`; broadcasts against
            `hidden` and `receiver`, which may have size 1 where it has several.
        weights: the layer's injection.

    Returns:
        The injected states, `[..., hidden_size]` in the broadcast shape.
    """
    gate = torch.sigmoid(
        F.linear(receiver, weights.receiver_gate, weights.bias)
        + F.linear(predecessor, weights.predecessor_gate)
    )
    written = F.linear(gate * F.linear(predecessor, weights.message), weights.write)
    norm: Tensor = torch.linalg.vector_norm(hidden.float(), dim=-1, keepdim=True)
    return hidden + (norm / math.sqrt(hidden.shape[-1])).to(hidden.dtype) * written


def inject(
    hidden: Tensor, known_codes: Tensor, weights: InjectionWeights, is_known: Tensor | None = None
) -> Tensor:
    """Inject into every proposal of a block at once; the anchor's state is unchanged.

    The predecessor of a proposal is sqrt(R) * its code where that token is known, else the transfer features of
    its state before injection.

    Args:
        hidden: a layer's output, `[num_blocks, block_size, hidden_size]`.
        known_codes: unit codes of known predecessors: `[num_blocks, 1, transfer_rank]`, the anchor's alone, or
            `[num_blocks, block_size - 1, transfer_rank]` with `is_known`.
        weights: the layer's injection.
        is_known: bool `[num_blocks, block_size - 1]`; true in column 0, whose predecessor is the anchor. Needed
            when `known_codes` holds more than the anchors.

    Returns:
        `[num_blocks, block_size, hidden_size]`.
    """
    anchor, proposals = hidden[:, :1], hidden[:, 1:]
    features = transfer_features(proposals, weights.readout)
    codes = known_codes * math.sqrt(features.shape[-1])
    predecessors = torch.cat((codes[:, :1], features[:, :-1]), 1)
    if is_known is not None:
        predecessors = torch.where(is_known[..., None], codes, predecessors)
    return torch.cat((anchor, receive(proposals, features, predecessors, weights)), 1)
