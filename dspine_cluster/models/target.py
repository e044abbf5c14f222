"""The target: embedding, decoder layers, final norm and head over a cache of the past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.models.cache import Cache
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.layers import Rotary


@dataclass(frozen=True, slots=True, eq=False)
class TargetOutput:
    """What one pass yields, a row a token."""

    hidden: Tensor
    """`[num_tokens, hidden_size]`, after the final norm."""
    taps: Tensor | None
    """`[num_tokens, num_tapped * hidden_size]`: the residual stream after each tapped layer, as ordered."""


class _Backbone(nn.Module):
    """Exists so that parameter names equal Hugging Face's."""

    def __init__(self, config: TargetConfig, layers: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class TargetModel(nn.Module):
    """A text model with Hugging Face's parameter names; architectures differ in layers and norm, passed in.

    A layer maps (hidden `[num_tokens, hidden_size]`, rotary, cache) to hidden.
    """

    def __init__(self, config: TargetConfig, layers: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = _Backbone(config, layers, norm)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def embedding_weight(self) -> Tensor:
        """`[vocab_size, hidden_size]`."""
        return self.model.embed_tokens.weight

    @property
    def lm_head_weight(self) -> Tensor:
        """`[vocab_size, hidden_size]`; the embedding where they are tied."""
        return self.embedding_weight if self.config.tie_word_embeddings else self.lm_head.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids `[n]` to `[n, hidden_size]`."""
        return F.embedding(tokens, self.embedding_weight)

    def forward(
        self, tokens: Tensor, positions: Tensor, cache: Cache, tapped_layers: Sequence[int] = ()
    ) -> TargetOutput:
        """Run requests packed one after the other; `cache` knows where each begins.

        Args:
            tokens, positions: int64 `[num_tokens]`.
            tapped_layers: layer numbers, from 0, whose output is wanted.
        """
        hidden = self.embed(tokens)
        rotary = Rotary.at(positions, self.config.rotary_dim, self.config.rope_theta, hidden.dtype)
        tapped: dict[int, Tensor] = {}
        for number, layer in enumerate(self.model.layers):
            hidden = layer(hidden, rotary, cache)
            if number in tapped_layers:
                tapped[number] = hidden
        taps = torch.cat([tapped[number] for number in tapped_layers], -1) if tapped_layers else None
        return TargetOutput(self.model.norm(hidden), taps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states `[rows, hidden_size]` to logits `[rows, vocab_size]`, float32."""
        return F.linear(hidden, self.lm_head_weight).float()
