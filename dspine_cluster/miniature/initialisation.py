"""How the miniature's target starts: small random matrices, and one induction circuit wired in.

A small model finds out by itself that it can copy only after far more tokens than this recipe has. So the circuit
that copies (Olsson et al., arXiv 2209.11895) is there from the first step: the first Gated DeltaNet layer writes which
token came before, and the first attention layer looks for the place where the present token came before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dspine_cluster.models.attention import GatedAttention
from dspine_cluster.models.config import FULL_ATTENTION, LINEAR_ATTENTION, TargetConfig
from dspine_cluster.models.gated_delta import GatedDeltaNet
from dspine_cluster.models.layers import ZeroCentredRMSNorm
from dspine_cluster.models.target import TargetModel

EMBEDDING_STD = 0.3
CONSTANT_SHARE = 0.5
"""Norm of the direction that all embeddings share, over that of the rest. It stands in for the missing biases."""
OPEN_GATE = 3.0
WRITE_STRENGTH = 5.0
SHARPNESS = 2.0
"""Weight of the query and key norms of the wired heads."""
COPY_NORM = 2.0
"""Norm of what the wired heads write, over the embedding's."""
FINAL_NORM = 0.1


@torch.no_grad()
def initialise(model: TargetModel, generator: torch.Generator) -> None:
    """Matrices of standard deviation 1/sqrt(inputs), much smaller where they write to the residual stream.

    Embedding and head become one parameter: what can be copied into the stream can then be read from it. Decay starts
    between slow and fast: A in 1..16 and softplus(dt_bias) in 0.001..0.1 (Gated DeltaNet's own choice).
    """
    shrink = 0.25 / math.sqrt(2 * model.config.num_layers)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.uniform_(1.0, 16.0, generator=generator).log_()
        elif name.endswith("dt_bias"):
            dt = parameter.uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
            parameter.copy_(dt + torch.log(-torch.expm1(-dt)))
        elif "embed_tokens" in name:
            parameter.normal_(0.0, EMBEDDING_STD, generator=generator)
        elif name.endswith("conv1d.weight"):
            parameter.normal_(0.0, 0.15, generator=generator)
            parameter[:, 0, -1] += 1.0
        elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            parameter.normal_(0.0, shrink / math.sqrt(parameter.shape[1]), generator=generator)
        elif parameter.ndim >= 2:
            parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[1]), generator=generator)
    model.lm_head.weight = model.model.embed_tokens.weight
    assert isinstance(model.model.norm, ZeroCentredRMSNorm)
    model.model.norm.weight.fill_(FINAL_NORM - 1.0)
    _wire_induction(model, generator)


def _wire_induction(model: TargetModel, generator: torch.Generator) -> None:
    config, embedding = model.config, model.embedding_weight
    constant = _random(1, config.hidden_size, generator=generator).squeeze(0)
    constant /= constant.norm()
    embedding -= (embedding @ constant).unsqueeze(1) * constant
    norm = embedding.norm(dim=1).mean()
    embedding += CONSTANT_SHARE * norm * constant
    delta = model.model.layers[config.layer_types.index(LINEAR_ATTENTION)].linear_attn
    attention = model.model.layers[config.layer_types.index(FULL_ATTENTION)].self_attn
    assert isinstance(delta, GatedDeltaNet)
    assert isinstance(attention, GatedAttention)
    reads, writes = _wire_previous_token(delta, constant, norm, generator)
    _wire_lookup(attention, config, reads, writes, norm, generator)


def _wire_previous_token(
    layer: GatedDeltaNet, constant: Tensor, norm: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The last key head writes its value heads' previous token: it reads what it has just written.

    Returns what is read of a token `[dims, hidden_size]`, and how that is written `[hidden_size, dims]`.
    """
    config, hidden_size = layer.config, len(constant)
    key_dims, dims = config.num_key_heads * config.key_head_dim, config.value_dim // config.num_key_heads
    query = slice(key_dims - config.key_head_dim, key_dims)
    key = slice(query.start + key_dims, query.stop + key_dims)
    value = slice(config.conv_dim - dims, config.conv_dim)
    projection, taps = layer.in_proj_qkv.weight, layer.conv1d.weight
    projection[key] = projection[query]
    reads = _random(dims, hidden_size, generator=generator) / math.sqrt(hidden_size)
    reads -= torch.outer(reads @ constant, constant)
    projection[value] = reads / 2  # small, where SiLU is nearly linear
    for channels, tap in ((query, -1), (key, -1), (value, -2)):
        taps[channels] = 0.0
        taps[channels, 0, tap] = 1.0
    # The constant direction after the input norm, which divides by the root mean square.
    along = CONSTANT_SHARE / math.sqrt(1 + CONSTANT_SHARE**2) * math.sqrt(hidden_size)
    layer.in_proj_b.weight[-config.num_value_heads // config.num_key_heads :] = (
        constant * WRITE_STRENGTH / along
    )
    layer.in_proj_z.weight[-dims:] = constant * OPEN_GATE / along
    writes = _random(hidden_size, dims, generator=generator) / math.sqrt(hidden_size * dims)
    writes -= torch.outer(constant, constant @ writes)
    layer.out_proj.weight[:, -dims:] = writes * norm / OPEN_GATE
    return reads, writes


def _wire_lookup(
    layer: GatedAttention,
    config: TargetConfig,
    reads: Tensor,
    writes: Tensor,
    norm: Tensor,
    generator: torch.Generator,
) -> None:
    """The first key head: queries look for their token among the keys' previous ones, and copy what stands there."""
    dims, first, heads = layer.head_dim, config.rotary_dim, config.num_heads // config.num_kv_heads
    mixed = _random(dims - first, len(reads), generator=generator)
    own, previous = mixed @ reads, mixed @ torch.linalg.pinv(writes)
    query = layer.q_proj.weight.view(config.num_heads, 2, dims, -1)[:heads, 0]
    key = layer.k_proj.weight.view(config.num_kv_heads, dims, -1)[0]
    query[:, first:] = own / own.norm() * math.sqrt(dims - first)
    key[first:] = previous / previous.norm() * math.sqrt(dims - first)
    query[:, :first] *= 0.1  # where a token stands must not matter
    key[:first] *= 0.1
    layer.q_norm.weight.fill_(SHARPNESS - 1.0)
    layer.k_norm.weight.fill_(SHARPNESS - 1.0)
    value = _random(dims, config.hidden_size, generator=generator) / math.sqrt(config.hidden_size)
    layer.v_proj.weight.view(config.num_kv_heads, dims, -1)[0] = value
    scale = COPY_NORM * norm / (0.5 * heads * math.sqrt(dims))  # the output gates are half open
    layer.o_proj.weight[:, : heads * dims] = (value.mT * scale).repeat(1, heads)


def _random(rows: int, columns: int, *, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator)
