"""A drafter laid out for CPUs: the same functions as `Drafter`'s, in fewer and larger operations.

At a handful of rows an operation costs more to start than to run. So norm weights are multiplied into the projections
behind them, what reads one input is one product, and what a predecessor contributes to the transition cache is looked
up. Results equal the modules' up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.models.drafter import DraftContext, Drafter
from dspine_cluster.models.drafter_layers import DrafterLayer
from dspine_cluster.models.dspine import DSpine
from dspine_cluster.models.packed_injection import PackedInjection, PackedTransitions
from dspine_cluster.models.packed_rotary import PackedRotary


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights as right factors, `[in, out]`."""

    qkv: Tensor  # [hidden_size, (num_heads + 2 * num_kv_heads) * head_dim]
    out: Tensor  # [num_heads * head_dim, hidden_size]
    gate_up: Tensor  # [hidden_size, 2 * intermediate_size]
    down: Tensor  # [intermediate_size, hidden_size]

    @classmethod
    def of(cls, layer: DrafterLayer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        return cls(
            qkv=_after_norm(qkv, layer.input_layernorm.weight),
            out=attention.o_proj.weight.t().contiguous(),
            gate_up=_after_norm(gate_up, layer.post_attention_layernorm.weight),
            down=mlp.down_proj.weight.t().contiguous(),
        )


class PackedDrafter:
    """Weights of a float32 drafter on a CPU, copied. For inference; the drafter must not change afterwards."""

    @torch.inference_mode()
    def __init__(self, drafter: Drafter) -> None:
        assert self.fits(drafter)
        config = drafter.config
        layers = drafter.attention_layers
        self._drafter = drafter
        self._config = config
        self._layers = [_Layer.of(layer) for layer in layers]
        attentions = [layer.self_attn for layer in layers]
        keys_values = [part.weight for a in attentions for part in (a.k_proj, a.v_proj)]
        self._context = torch.cat(keys_values).t().contiguous()  # [hidden_size, num_layers * 2 * key_size]
        key_scales = torch.stack(tuple(a.k_norm.weight for a in attentions))  # [num_layers, head_dim]
        query_scales = torch.stack(tuple(a.q_norm.weight for a in attentions))
        scales = torch.cat(
            (
                query_scales.unsqueeze(1).expand(-1, config.num_heads, -1),
                key_scales.unsqueeze(1).expand(-1, config.num_kv_heads, -1),
            ),
            1,
        )  # [num_layers, num_heads + num_kv_heads, head_dim]
        self._rotary = PackedRotary(config, scales)
        self._key_rotary = PackedRotary(config, key_scales.unsqueeze(1))
        self._hidden_floor = torch.tensor(math.sqrt(config.rms_norm_eps * config.hidden_size))
        self._head = _after_norm(drafter.lm_head, drafter.norm.weight)
        self._injection = PackedInjection(drafter) if isinstance(drafter, DSpine) else None
        self._transitions = PackedTransitions(drafter) if isinstance(drafter, DSpine) else None

    @staticmethod
    def fits(drafter: Drafter) -> bool:
        """Whether it is one for a CPU in float32, with candidates of its layers alone."""
        computes_alike = type(drafter).candidates is Drafter.candidates
        return computes_alike and drafter.lm_head.is_cpu and drafter.lm_head.dtype == torch.float32

    def project_context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """As `Drafter.project_context`; not contiguous."""
        config = self._config
        parts = torch.mm(features, self._context).view(
            len(features), config.num_layers, 2, config.num_kv_heads, config.head_dim
        )
        keys = self._key_rotary.place(parts[:, :, 0], self._key_rotary.tables(positions))
        return keys.transpose(0, 1), parts[:, :, 1].transpose(0, 1)

    def candidates(self, anchors: Tensor, positions: Tensor, context: DraftContext) -> tuple[Tensor, Tensor]:
        """As `Drafter.candidates`."""
        config = self._config
        num_blocks = anchors.shape[0]
        hidden = self._drafter.embed_blocks(anchors)  # [num_blocks * block_size, hidden_size]
        blocks = hidden.view(num_blocks, config.block_size, -1)
        block_positions = self._drafter.block_positions(positions).flatten()
        tables = self._rotary.tables(block_positions)
        attend_in = self._drafter.attention(positions, context, hidden.dtype)
        num_queries, num_kv_heads = config.num_heads, config.num_kv_heads
        before = features = blocks
        for index, layer in enumerate(self._layers):
            qkv = torch.mm(self._normalise(hidden), layer.qkv).view(
                len(hidden), num_queries + 2 * num_kv_heads, -1
            )
            placed = self._rotary.place(qkv[:, :-num_kv_heads], tables.of_layer(index))
            attended = attend_in(index)(
                placed[:, :num_queries], placed[:, num_queries:], qkv[:, -num_kv_heads:]
            )
            hidden = torch.addmm(hidden, attended.flatten(1), layer.out)
            gate, up = torch.mm(self._normalise(hidden), layer.gate_up).chunk(2, -1)
            hidden.addmm_(torch.nn.functional.silu(gate).mul_(up), layer.down)
            blocks = hidden.view(num_blocks, config.block_size, -1)
            if self._injection is not None:
                if index == config.num_layers - 1:
                    before = blocks.clone()
                features = self._injection.inject_(index, blocks, anchors)
        proposals = self._normalise(blocks[:, 1:]).flatten(0, 1)
        logits = torch.mm(proposals, self._head).view(num_blocks, config.num_proposals, -1)
        logits[..., config.mask_token_id] = -torch.inf
        top = logits.topk(config.top_k)
        if self._transitions is None:
            return top.indices, top.values.unsqueeze(2)
        return top.indices, self._transitions.rows(before[:, 1:], features, anchors, top.indices)

    def _normalise(self, x: Tensor) -> Tensor:
        """x / sqrt(|x|^2 + eps * hidden_size): an RMS norm but for what the weights behind it contain."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot(self._hidden_floor)


def _after_norm(weight: Tensor, norm_weight: Tensor) -> Tensor:
    """`[out, in]` as a right factor `[in, out]` that contains the scale of the norm before it."""
    scaled = weight * (norm_weight * math.sqrt(weight.shape[1]))
    return scaled.t().contiguous()
