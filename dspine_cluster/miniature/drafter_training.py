"""The drafters' forward pass in its differentiable form: many blocks of a sequence at once, labels known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_layers import Attend
from dspine_cluster.models.dspine import DSpine
from dspine_kernels import injection


@dataclass(frozen=True, slots=True)
class TrainingOutput:
    """States of every proposal of every block; S sequences, A blocks each, P proposals, H the hidden size."""

    hidden: Tensor  # [S, A, P, H] after the final norm: times lm_head gives the logits
    before_injection: Tensor  # [S, A, P, H] the last layer's output before its injection
    transfer: Tensor | None  # [num_layers, S, A, P, transfer_rank] features after injection; None for dflash
    labels: Tensor  # int64 [S, A, P] the tokens after the anchor; 0 where not valid
    predecessors: Tensor  # int64 [S, A, P] the token before each label
    is_valid: Tensor  # bool [S, A, P] the label and all before it in the block exist and are wanted
    label_positions: Tensor  # int64 [S, A, P] index of each label in its sequence; clamped where not valid


def training_forward(
    drafter: Drafter,
    features: Tensor,
    tokens: Tensor,
    anchors: Tensor,
    *,
    label_mask: Tensor | None = None,
    replaced: Tensor | None = None,
    num_replaced_layers: int = 3,
) -> TrainingOutput:
    """Draft from many anchors of each sequence in one pass, as `Drafter.draft` would with the full context.

    Args:
        drafter: trained in place.
        features: `[S, T, H]` from the feature projector, or from the projector in the same graph.
        tokens: int64 `[S, T]`.
        anchors: int64 `[S, A]`, positions of the anchors in their sequences, each at least 1 and below T - 1.
        label_mask: bool `[S, T]`, tokens that may be labels; a block ends at the first that may not.
        replaced: bool `[S, A]`, blocks whose first `num_replaced_layers` injections see true predecessors.
        num_replaced_layers: see `replaced`.
    """
    config = drafter.config
    num_sequences, length = tokens.shape
    num_blocks = anchors.shape[1]
    positions = anchors.unsqueeze(-1) + torch.arange(
        config.block_size, device=anchors.device
    )  # [S, A, block_size]
    blocks = tokens.gather(1, positions.clamp(max=length - 1).flatten(1)).view(positions.shape)
    label_positions = positions[..., 1:]
    is_valid = label_positions < length
    label_positions = label_positions.clamp(max=length - 1)
    if label_mask is not None:
        is_valid = is_valid & label_mask.gather(1, label_positions.flatten(1)).view(label_positions.shape)
    is_valid = is_valid.int().cumprod(-1).bool()

    hidden = drafter.embed_blocks(blocks[..., 0].flatten())
    rotary = drafter.rotary(positions.flatten(), hidden.dtype)
    context_rotary = drafter.rotary(
        torch.arange(length, device=tokens.device).repeat(num_sequences), hidden.dtype
    )
    block_shape = (num_sequences * num_blocks, config.block_size)
    replaced = replaced.view(-1, 1) if replaced is not None else None
    masks: dict[tuple[int | None, bool], Tensor] = {}
    transfer = []
    before = hidden
    for index, layer in enumerate(drafter.attention_layers):
        rule = (config.window(index), config.is_causal[index])
        if rule not in masks:
            masks[rule] = _mask(anchors, length, config.block_size, *rule)
        context = layer.self_attn.key_value(features.flatten(0, 1), context_rotary)
        before = layer(hidden, rotary, _attend(*context, masks[rule])).view(*block_shape, -1)
        hidden = before
        if isinstance(drafter, DSpine):
            is_replaced = replaced if index < num_replaced_layers else None
            hidden = _inject(drafter, index, before, blocks.view(block_shape), is_replaced)
            readout = drafter.injection.weights(index).readout
            transfer.append(injection.transfer_features(hidden[:, 1:], readout))
        hidden = hidden.flatten(0, 1)
    per_block = (num_sequences, num_blocks)
    return TrainingOutput(
        hidden=drafter.norm(hidden).view(*per_block, config.block_size, -1)[:, :, 1:],
        before_injection=before.view(*per_block, *before.shape[1:])[:, :, 1:],
        transfer=torch.stack(transfer).view(config.num_layers, *per_block, config.num_proposals, -1)
        if transfer
        else None,
        labels=torch.where(is_valid, blocks[..., 1:], 0),
        predecessors=blocks[..., :-1],
        is_valid=is_valid,
        label_positions=label_positions,
    )


def _inject(
    drafter: DSpine, layer: int, hidden: Tensor, blocks: Tensor, is_replaced: Tensor | None
) -> Tensor:
    """Injection with true predecessors in the blocks `[num_blocks, 1]` where `is_replaced`."""
    if is_replaced is None:
        return drafter.inject(layer, hidden, blocks[:, 0])
    is_anchor = torch.arange(blocks.shape[1] - 1, device=blocks.device) == 0
    codes = F.embedding(blocks[:, :-1], drafter.transfer_codes)
    weights = drafter.injection.weights(layer)
    return injection.inject(hidden, codes.to(hidden.dtype), weights, is_anchor | is_replaced)


def _mask(anchors: Tensor, length: int, block_size: int, window: int | None, is_causal: bool) -> Tensor:
    """What block tokens see: bool `[S, 1, A * block_size, T + A * block_size]`, context first, then the blocks."""
    offsets = torch.arange(block_size, device=anchors.device)
    queries = (anchors.unsqueeze(-1) + offsets).flatten(1).unsqueeze(2)  # [S, A * block_size, 1]
    own_anchor = anchors.repeat_interleave(block_size, 1)
    context = torch.arange(length, device=anchors.device).expand(1, 1, -1)
    sees_context = context < own_anchor.unsqueeze(2)  # [S, A * block_size, T]
    block_of = torch.arange(own_anchor.shape[1], device=anchors.device) // block_size
    keys = queries.transpose(1, 2)
    sees_block = (block_of[:, None] == block_of).expand(anchors.shape[0], -1, -1)
    if is_causal:
        sees_block = sees_block & (keys <= queries)
    if window is not None:
        sees_context = sees_context & (queries - context < window)
        sees_block = sees_block & (queries - keys < window)
    return torch.cat((sees_context, sees_block), 2).unsqueeze(1)


def _attend(context_key: Tensor, context_value: Tensor, mask: Tensor) -> Attend:
    """Attention of all blocks over their sequences' context `[S * T, num_kv_heads, head_dim]` and themselves."""
    num_sequences = mask.shape[0]

    def by_sequence(rows: Tensor) -> Tensor:
        return rows.view(num_sequences, -1, *rows.shape[1:]).transpose(1, 2)  # [S, num_heads, n, head_dim]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys = torch.cat((by_sequence(context_key), by_sequence(key)), 2)
        values = torch.cat((by_sequence(context_value), by_sequence(value)), 2)
        out = F.scaled_dot_product_attention(
            by_sequence(query), keys, values, attn_mask=mask, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)

    return attend
