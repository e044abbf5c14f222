"""Small random drafters, paged contexts for them, and a dense drafter written straight from the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext, Drafter
from dspine_cluster.models.drafter_config import FULL_ATTENTION, SLIDING_ATTENTION, DrafterConfig
from dspine_cluster.models.drafter_init import build_drafter
from dspine_cluster.models.dspine import DSpine

FULL = FULL_ATTENTION
SLIDING = SLIDING_ATTENTION


def small_config(kind: Literal["dspine", "dflash"] = "dspine", **changes: Any) -> DrafterConfig:
    """Three layers, grouped heads, block 6."""
    values: dict[str, Any] = {
        "kind": kind,
        "hidden_size": 24,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "vocab_size": 80,
        "block_size": 6,
        "mask_token_id": 79,
        "target_layer_ids": (0, 2),
        "layer_types": (FULL,) * 3,
        "sliding_window": None,
        "is_causal": (kind == "dspine",) * 3,
    }
    if kind == "dspine":
        values |= {"transfer_rank": 12, "message_size": 10, "top_k": 7}
    return DrafterConfig(**(values | changes))


def random_drafter(config: DrafterConfig, seed: int = 0) -> Drafter:
    """Every parameter random and large enough to matter to the proposals, whose distributions stay wide."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    lm_head = 0.3 * torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    drafter = build_drafter(config, embedding=embedding, lm_head=lm_head, seed=seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return drafter.requires_grad_(False).eval()


@dataclass(frozen=True)
class Block:
    """A block to draft: the features of all tokens before its anchor, of which it may use those from `start`."""

    features: Tensor  # [position, hidden_size]
    anchor: int
    start: int = 0

    @property
    def position(self) -> int:
        return self.features.shape[0]


def random_block(config: DrafterConfig, position: int, start: int = 0, seed: int = 0) -> Block:
    generator = torch.Generator().manual_seed(seed + 1000 * position)
    features = torch.randn(position, config.hidden_size, generator=generator)
    return Block(features, anchor=(7 * position + seed) % (config.vocab_size - 1), start=start)


def paged_context(drafter: Drafter, blocks: Sequence[Block]) -> DraftContext:
    """Contexts in a pool whose pages are dealt out backwards; all unused slots hold NaN."""
    config = drafter.config
    first_pages = [block.start // 16 for block in blocks]
    page_counts = [
        math.ceil(block.position / 16) - first for block, first in zip(blocks, first_pages, strict=True)
    ]
    num_pages = sum(page_counts) + 2
    shape = (config.num_layers, num_pages, 16, config.num_kv_heads, config.head_dim)
    key_pages, value_pages = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    page_table = torch.zeros(len(blocks), max(page_counts, default=0) + 1, dtype=torch.int32)
    free = list(range(num_pages - 1))
    for row, (block, first, count) in enumerate(zip(blocks, first_pages, page_counts, strict=True)):
        pages = [free.pop() for _ in range(count)]
        page_table[row, :count] = torch.tensor(pages, dtype=torch.int32)
        positions = torch.arange(block.start, block.position)
        keys, values = drafter.project_context(block.features[block.start :], positions)
        slots = torch.tensor(
            [pages[p // 16 - first] * 16 + p % 16 for p in positions.tolist()], dtype=torch.int64
        )
        key_pages.flatten(1, 2)[:, slots] = keys
        value_pages.flatten(1, 2)[:, slots] = values
    starts = torch.tensor([block.start for block in blocks])
    return DraftContext(key_pages, value_pages, page_table, torch.tensor(first_pages), starts)


def anchors_of(blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
    """(anchor tokens, their positions)"""
    return torch.tensor([b.anchor for b in blocks]), torch.tensor([b.position for b in blocks])


def sampling_of(
    temperatures: Sequence[float],
    seeds: Sequence[int | None] | None = None,
    output_index: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> DraftSampling:
    seeds = seeds or [None] * len(temperatures)
    return DraftSampling(
        temperature=torch.tensor(temperatures, dtype=torch.float32),
        seeds=torch.tensor([seed or 0 for seed in seeds]),
        has_seed=torch.tensor([seed is not None for seed in seeds]),
        output_index=torch.tensor(output_index or [0] * len(temperatures)),
        generator=generator,
    )


def dense_states(
    drafter: Drafter, block: Block, known: Sequence[int] = (), num_known_layers: int = 0
) -> tuple[Tensor, Tensor]:
    """(last layer's output after injection, before it), each `[block_size, hidden_size]`.

    In the first `num_known_layers` the codes of the `known` tokens after the anchor stand for the predecessors.
    """
    config = drafter.config
    state = drafter.state_dict()
    tokens = [block.anchor] + [config.mask_token_id] * config.num_proposals
    hidden = drafter.embedding[torch.tensor(tokens)]
    before = hidden
    for layer in range(config.num_layers):
        before = dense_layer(drafter, layer, block, hidden)
        hidden = before
        if isinstance(drafter, DSpine):
            features = [
                unit(before[j] @ state[f"injection.readouts.{layer}.weight"].T)
                for j in range(config.block_size)
            ]
            codes = drafter.transfer_codes[block.anchor] * config.transfer_rank**0.5
            predecessors = [codes, codes, *features[1:-1]]
            if layer < num_known_layers:
                tail = [config.transfer_rank**0.5 * drafter.transfer_codes[token] for token in known]
                predecessors = [codes, codes, *tail[: config.num_proposals - 1]]
            written = [
                dense_write(drafter, layer, before[j], predecessors[j]) for j in range(1, config.block_size)
            ]
            hidden = torch.stack([before[0], *written])
    return hidden, before


def dense_layer(drafter: Drafter, layer: int, block: Block, hidden: Tensor) -> Tensor:
    """Layer output `[block_size, hidden_size]`, one head and one query at a time."""
    config = drafter.config
    state = drafter.state_dict()
    prefix = f"layers.{layer}."
    attn = prefix + "self_attn."
    n = block.position
    positions = [*range(block.start, n), *range(n, n + config.block_size)]
    normed = rms(hidden, state[prefix + "input_layernorm.weight"], config)
    sources = torch.cat((block.features[block.start :], normed))
    window = config.sliding_window if config.layer_types[layer] == SLIDING else None
    attended: list[list[Tensor]] = [[] for _ in range(config.block_size)]
    for head in range(config.num_heads):
        kv_head = head * config.num_kv_heads // config.num_heads
        keys = head_of(sources @ state[attn + "k_proj.weight"].T, kv_head, config)
        keys = rms(keys, state[attn + "k_norm.weight"], config)
        keys = torch.stack([rotate(key, p, config) for key, p in zip(keys, positions, strict=True)])
        values = head_of(sources @ state[attn + "v_proj.weight"].T, kv_head, config)
        queries = head_of(normed @ state[attn + "q_proj.weight"].T, head, config)
        queries = rms(queries, state[attn + "q_norm.weight"], config)
        for j in range(config.block_size):
            last = n + j if config.is_causal[layer] else n + config.block_size
            seen = torch.tensor([p <= last and (window is None or n + j - p < window) for p in positions])
            scores = keys[seen] @ rotate(queries[j], n + j, config) * config.head_dim**-0.5
            attended[j].append(scores.softmax(0) @ values[seen])
    out: Tensor = (
        hidden + torch.stack([torch.cat(heads) for heads in attended]) @ state[attn + "o_proj.weight"].T
    )
    x = rms(out, state[prefix + "post_attention_layernorm.weight"], config)
    gate = F.silu(x @ state[prefix + "mlp.gate_proj.weight"].T)
    up = x @ state[prefix + "mlp.up_proj.weight"].T
    out += (gate * up) @ state[prefix + "mlp.down_proj.weight"].T
    return out


def dense_write(drafter: DSpine, layer: int, h: Tensor, predecessor: Tensor) -> Tensor:
    """h + (||h|| / sqrt(H)) * write(gate * message(predecessor)), `[hidden_size]`; ||h|| / sqrt(H) is h's rms."""
    state = drafter.state_dict()
    feature = unit(h @ state[f"injection.readouts.{layer}.weight"].T)
    gate = torch.sigmoid(
        state["injection.receiver_gate.weight"] @ feature
        + state["injection.predecessor_gate.weight"] @ predecessor
        + state["injection.bias"]
    )
    message = state["injection.message.weight"] @ predecessor
    write = state[f"injection.writes.{layer}.weight"]
    written: Tensor = h.square().mean().sqrt() * (write @ (gate * message))
    return h + written


def dense_logits(drafter: Drafter, states: Tensor) -> Tensor:
    """Logits of states `[..., hidden_size]`; the mask token is never proposed."""
    logits = rms(states, drafter.state_dict()["norm.weight"], drafter.config) @ drafter.lm_head.T
    logits[..., drafter.config.mask_token_id] = -torch.inf
    return logits


def unit(x: Tensor) -> Tensor:
    """sqrt(R) * x / ||x||"""
    return x / x.square().mean().sqrt()


def rms(x: Tensor, weight: Tensor, config: DrafterConfig) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight


def head_of(rows: Tensor, head: int, config: DrafterConfig) -> Tensor:
    return rows[..., head * config.head_dim : (head + 1) * config.head_dim]


def rotate(x: Tensor, position: int, config: DrafterConfig) -> Tensor:
    half = config.head_dim // 2
    angles = torch.tensor([position * config.rope_theta ** (-i / half) for i in range(half)])
    first, second = x[:half], x[half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    )
