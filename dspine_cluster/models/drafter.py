"""What `dspine` and `dflash` drafters have in common: the backbone, the context and the draft of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.errors import MismatchError
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_layers import Attend, DrafterLayer
from dspine_cluster.models.layers import RMSNorm, Rotary
from dspine_kernels import draft_attention, transition_cache


@dataclass(frozen=True, slots=True)
class DraftContext:
    """Context K/V of a batch of blocks in a paged pool.

    Block b uses positions `starts[b] <= position < its anchor's`; equal means no context. Slots outside may hold
    anything, NaN included.
    """

    key_pages: Tensor  # [num_layers, num_pages, 16, num_kv_heads, head_dim]
    value_pages: Tensor  # as key_pages
    page_table: Tensor  # int [num_blocks, max_pages]: entry i holds positions from 16 * (first_pages[b] + i)
    first_pages: Tensor  # int [num_blocks]
    starts: Tensor  # int64 [num_blocks]


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """Proposals and the distributions they were drawn from."""

    tokens: Tensor  # int64 [num_blocks, num_proposals]
    candidates: Tensor  # int64 [num_blocks, num_proposals, top_k]
    probs: Tensor  # float32 [num_blocks, num_proposals, top_k]; untempered at temperature 0
    confidence: Tensor  # float32 [num_blocks, num_proposals]: largest untempered probability of the row


class Drafter(nn.Module, ABC):
    """Proposes a block of tokens after an anchor. The state dict holds neither the target's weights nor `fc`."""

    def __init__(self, config: DrafterConfig, embedding: Tensor, lm_head: Tensor) -> None:
        """Share the target's frozen `embedding` and `lm_head`, each `[vocab_size, hidden_size]`.

        Raises:
            MismatchError: the target has another vocabulary or hidden size.
        """
        super().__init__()
        expected = (config.vocab_size, config.hidden_size)
        for name, weight in (("embedding", embedding), ("lm_head", lm_head)):
            if weight.shape != expected:
                raise MismatchError(
                    f"the target's {name} is {tuple(weight.shape)} but the drafter was made for {expected}; "
                    "use the drafter that belongs to this target"
                )
        self.config = config
        # Detached, so that the module does not register them as parameters of its own.
        self.embedding = embedding.detach()
        self.lm_head = lm_head.detach()
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def attention_layers(self) -> list[DrafterLayer]:
        """The layers in order, typed."""
        return [layer for layer in self.layers if isinstance(layer, DrafterLayer)]

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        """Rotation at absolute positions int64 `[n]`."""
        return Rotary.at(positions, self.config.head_dim, self.config.rope_theta, dtype)

    def embed_blocks(self, anchors: Tensor) -> Tensor:
        """Input of blocks: anchors int64 `[num_blocks]` to `[num_blocks * block_size, hidden_size]`."""
        masks = anchors.new_full((anchors.shape[0], self.config.num_proposals), self.config.mask_token_id)
        return F.embedding(torch.cat((anchors.unsqueeze(1), masks), 1), self.embedding).flatten(0, 1)

    def block_positions(self, positions: Tensor) -> Tensor:
        """Absolute position of every block token: `[num_blocks]` to `[num_blocks, block_size]`."""
        return positions[:, None] + torch.arange(self.config.block_size, device=positions.device)

    def project_context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Context keys and values of committed tokens; a row depends on its feature and position alone.

        Args:
            features: `[n, hidden_size]`.
            positions: int64 `[n]`, absolute.

        Returns:
            Keys, normed and rotated, and values; each `[num_layers, n, num_kv_heads, head_dim]`.
        """
        rotary = self.rotary(positions, features.dtype)
        pairs = [layer.self_attn.key_value(features, rotary) for layer in self.attention_layers]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys), torch.stack(values)

    def draft(
        self, anchors: Tensor, positions: Tensor, context: DraftContext, sampling: DraftSampling
    ) -> DraftOutput:
        """Propose `block_size - 1` tokens after each anchor. Not differentiable.

        Args:
            anchors: int64 `[num_blocks]`, the last committed tokens.
            positions: int64 `[num_blocks]`, their absolute positions.
            context: K/V of committed tokens before the anchors: any contiguous run that ends right before them.
            sampling: one entry a block.
        """
        with torch.inference_mode():
            candidates, rows = self.candidates(anchors, positions, context)
            return self.walk(candidates, rows, sampling)

    def candidates(self, anchors: Tensor, positions: Tensor, context: DraftContext) -> tuple[Tensor, Tensor]:
        """What a walk chooses from, the same however it samples; arguments as for `draft`.

        Returns:
            Candidates int64 `[num_blocks, num_proposals, top_k]`, and their `rows`.
        """
        hidden, before_injection = self.run_layers(anchors, positions, context)
        logits = F.linear(self.norm(hidden[:, 1:]), self.lm_head).float()
        logits[..., self.config.mask_token_id] = -torch.inf
        top = logits.topk(self.config.top_k)
        return top.indices, self.rows(before_injection[:, 1:], anchors, top.indices, top.values)

    def walk(self, candidates: Tensor, rows: Tensor, sampling: DraftSampling) -> DraftOutput:
        """Choose the proposals from what `candidates` gave."""
        noise = sampling.noise(candidates)
        walk = transition_cache.walk(rows, candidates, sampling.temperature, noise)
        return DraftOutput(walk.tokens, candidates, walk.probs, walk.confidence)

    def run_layers(self, anchors: Tensor, positions: Tensor, context: DraftContext) -> tuple[Tensor, Tensor]:
        """Last layer's output after and before its injection; each `[num_blocks, block_size, hidden_size]`."""
        hidden = self.embed_blocks(anchors)
        block_shape = (anchors.shape[0], self.config.block_size, hidden.shape[-1])
        rotary = self.rotary(self.block_positions(positions).flatten(), hidden.dtype)
        attend_in = self.attention(positions, context, hidden.dtype)
        before = hidden
        for index, layer in enumerate(self.layers):
            before = layer(hidden, rotary, attend_in(index)).view(block_shape)
            hidden = self.inject(index, before, anchors).flatten(0, 1)
        return hidden.view(block_shape), before

    @abstractmethod
    def inject(self, layer: int, hidden: Tensor, anchors: Tensor) -> Tensor:
        """What follows `layer`: `[num_blocks, block_size, hidden_size]` to the same."""

    @abstractmethod
    def rows(self, states: Tensor, anchors: Tensor, candidates: Tensor, logits: Tensor) -> Tensor:
        """Rows that the walk chooses from.

        Args:
            states: of the proposals before the last layer's injection, `[num_blocks, num_proposals, hidden_size]`.
            anchors: int64 `[num_blocks]`.
            candidates: int64 `[num_blocks, num_proposals, top_k]`.
            logits: float32, of the candidates.

        Returns:
            float32 `[num_blocks, num_proposals, top_k or 1 (predecessor), top_k]`.
        """

    def attention(
        self, positions: Tensor, context: DraftContext, dtype: torch.dtype
    ) -> Callable[[int], Attend]:
        """The attention of each layer over `context`; layers with one mask share a plan."""
        config = self.config
        masks = [(config.window(layer), config.is_causal[layer]) for layer in range(config.num_layers)]
        plans = {
            (window, is_causal): draft_attention.plan(
                context.page_table,
                context.first_pages,
                context.starts,
                positions,
                block_size=config.block_size,
                num_groups=config.num_heads // config.num_kv_heads,
                window=window,
                is_causal=is_causal,
                dtype=dtype,
            )
            for window, is_causal in set(masks)
        }
        block_shape = (positions.shape[0], config.block_size, -1, config.head_dim)

        def attend_in(layer: int) -> Attend:
            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                attended = draft_attention.attend(
                    query.view(block_shape),
                    key.view(block_shape),
                    value.view(block_shape),
                    context.key_pages[layer],
                    context.value_pages[layer],
                    plans[masks[layer]],
                )
                return attended.flatten(0, 1)

            return attend

        return attend_in
