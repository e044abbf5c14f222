"""The DSpine drafter (arXiv 2609.36173): DFlash's backbone, adjacent injection and the transition cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_kernels import injection, transition_cache
from dspine_kernels.injection import InjectionWeights


class Injection(nn.Module):
    """Parameters of adjacent injection; all but readouts and writes are shared by the layers."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rank, message_size = config.transfer_rank, config.message_size
        layers = range(config.num_layers)
        self.readouts = nn.ModuleList(nn.Linear(config.hidden_size, rank, bias=False) for _ in layers)
        self.writes = nn.ModuleList(nn.Linear(message_size, config.hidden_size, bias=False) for _ in layers)
        self.message = nn.Linear(rank, message_size, bias=False)
        self.receiver_gate = nn.Linear(rank, message_size, bias=False)
        self.predecessor_gate = nn.Linear(rank, message_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(message_size))

    def weights(self, layer: int) -> InjectionWeights:
        """The weights of `layer`, as the kernels take them."""
        return InjectionWeights(
            readout=self.readouts[layer].get_parameter("weight"),
            write=self.writes[layer].get_parameter("weight"),
            message=self.message.weight,
            receiver_gate=self.receiver_gate.weight,
            predecessor_gate=self.predecessor_gate.weight,
            bias=self.bias,
        )


class DSpine(Drafter):
    """Proposals know their predecessors: by injection inside the backbone, and by the transition cache after it."""

    transfer_codes: Tensor  # [vocab_size, transfer_rank], unit rows
    transfer_ready: Tensor  # bool []: the codes have been set

    def __init__(self, config: DrafterConfig, embedding: Tensor, lm_head: Tensor) -> None:
        super().__init__(config, embedding, lm_head)
        self.injection = Injection(config)
        self.register_buffer("transfer_codes", torch.zeros(config.vocab_size, config.transfer_rank))
        self.register_buffer("transfer_ready", torch.tensor(False))

    def set_transfer_codes(self, codes: Tensor) -> None:
        """Fix the codes, unit rows `[vocab_size, transfer_rank]`."""
        self.transfer_codes.copy_(codes)
        self.transfer_ready.fill_(True)

    def inject(self, layer: int, hidden: Tensor, anchors: Tensor) -> Tensor:
        return injection.inject_after_anchors(
            hidden, anchors, self.transfer_codes, self.injection.weights(layer)
        )

    def rows(self, states: Tensor, anchors: Tensor, candidates: Tensor, logits: Tensor) -> Tensor:
        weights = self.injection.weights(self.config.num_layers - 1)
        return transition_cache.scores(
            states,
            anchors,
            candidates,
            self.transfer_codes,
            self.lm_head,
            weights,
            self.norm.weight,
            self.norm.eps,
        )

    def refine(self, states: Tensor, predecessors: Tensor) -> Tensor:
        """norm(refine(state, code of the predecessor)), whose product with `lm_head` scores the next token.

        Args:
            states: before the last layer's injection, `[..., hidden_size]`.
            predecessors: int64 `[...]`, the tokens before them.
        """
        weights = self.injection.weights(self.config.num_layers - 1)
        codes = F.embedding(predecessors, self.transfer_codes) * self.config.transfer_rank**0.5
        features = injection.transfer_features(states, weights.readout)
        refined: Tensor = self.norm(injection.receive(states, features, codes.to(states.dtype), weights))
        return refined
