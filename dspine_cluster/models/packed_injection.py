"""Adjacent injection and the transition cache of a packed drafter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dspine_cluster.models.dspine import DSpine

_MAX_TABLE_BYTES = 64 << 20


class PackedInjection:
    """Adjacent injection, all layers."""

    def __init__(self, drafter: DSpine) -> None:
        config = drafter.config
        weights = [drafter.injection.weights(layer) for layer in range(config.num_layers)]
        scale = math.sqrt(config.transfer_rank)
        nothing = torch.zeros_like(weights[0].message)
        # A row of features of a predecessor and of its receiver, to what the gate adds up and to the message.
        self._messages = (
            scale
            * torch.cat(
                (
                    torch.cat((weights[0].predecessor_gate, weights[0].receiver_gate), 1),
                    torch.cat((weights[0].message, nothing), 1),
                )
            )
            .t()
            .contiguous()
        )  # [2 * transfer_rank, 2 * message_size]
        self._bias = torch.cat((weights[0].bias, torch.zeros_like(weights[0].bias)))
        self._readouts = [w.readout.t().contiguous() for w in weights]
        self._writes = [_write(w.write) for w in weights]
        self._codes = drafter.transfer_codes

    def inject_(self, layer: int, hidden: Tensor, anchors: Tensor) -> Tensor:
        """Inject into every proposal of `hidden` `[num_blocks, block_size, hidden_size]`, in place.

        Returns the transfer features before it, unit rows `[num_blocks, block_size, transfer_rank]`; in place of
        the anchor's those of its code.
        """
        num_blocks, block_size, _ = hidden.shape
        features = torch.matmul(hidden, self._readouts[layer])
        features.div_(torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min_(1e-12))
        features[:, 0] = self._codes[anchors]
        rank = features.shape[-1]
        pairs = features.as_strided(
            (num_blocks, block_size - 1, 2 * rank), (block_size * rank, rank, 1)
        ).reshape(-1, 2 * rank)
        gate, message = torch.addmm(self._bias, pairs, self._messages).chunk(2, -1)
        written = torch.mm(gate.sigmoid().mul_(message), self._writes[layer])
        proposals = hidden[:, 1:]
        lengths = torch.linalg.vector_norm(proposals, dim=-1, keepdim=True)
        proposals.addcmul_(lengths, written.view(proposals.shape))
        return features


class PackedTransitions:
    """The scores of every pair of neighbouring candidates."""

    def __init__(self, drafter: DSpine) -> None:
        config = drafter.config
        weights = drafter.injection.weights(config.num_layers - 1)
        scale = math.sqrt(config.transfer_rank)
        self._predecessors = scale * torch.cat((weights.predecessor_gate, weights.message)).t().contiguous()
        self._codes = drafter.transfer_codes
        table_bytes = len(self._codes) * self._predecessors.shape[1] * self._codes.itemsize
        self._table = self._codes @ self._predecessors if table_bytes <= _MAX_TABLE_BYTES else None
        self._receiver = (scale * weights.receiver_gate).t().contiguous()
        self._bias = weights.bias
        self._write = _write(weights.write)
        self._lm_head = drafter.lm_head
        self._norm_weight = drafter.norm.weight * math.sqrt(config.hidden_size)
        self._floor = torch.tensor(math.sqrt(drafter.norm.eps * config.hidden_size))

    def rows(self, states: Tensor, features: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
        """As `transition_cache.scores`; `features` are what the last layer's injection returned."""
        num_blocks, num_proposals, top_k = candidates.shape
        first = anchors.view(num_blocks, 1, 1).expand(num_blocks, 1, top_k)
        predecessors = torch.cat((first, candidates[:, :-1]), 1).flatten()
        if self._table is not None:
            sent = self._table.index_select(0, predecessors)
        else:
            sent = torch.mm(self._codes.index_select(0, predecessors), self._predecessors)
        gate, message = sent.view(num_blocks, num_proposals, top_k, -1).chunk(2, -1)
        received = torch.addmm(self._bias, features[:, 1:].flatten(0, 1), self._receiver)
        gate = (gate + received.view(num_blocks, num_proposals, 1, -1)).sigmoid_().mul_(message)
        written = torch.mm(gate.flatten(0, 2), self._write).view(num_blocks, num_proposals, top_k, -1)
        lengths = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        refined = torch.addcmul(states.unsqueeze(2), lengths.unsqueeze(2), written)
        heads = self._lm_head.index_select(0, candidates.flatten()).mul_(self._norm_weight)
        norms = torch.linalg.vector_norm(refined, dim=-1, keepdim=True).hypot(self._floor)
        shape = (num_blocks * num_proposals, top_k, -1)
        scores = torch.bmm(refined.view(shape), heads.view(shape).transpose(1, 2))
        return scores.view(num_blocks, num_proposals, top_k, top_k).div_(norms)


def _write(weight: Tensor) -> Tensor:
    """As a right factor that contains 1 / sqrt(hidden_size)."""
    return (weight / math.sqrt(weight.shape[0])).t().contiguous()
