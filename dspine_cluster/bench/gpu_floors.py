"""The least that each part of a round must move and compute, and the time that this takes at measured ceilings.

Bytes: every weight and cached value is read once, every result written once; intermediates cost nothing. Operations:
those of matrix products, two a multiplication and addition. Weights and activations are bf16, states fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

from dspine_cluster.models.config import FULL_ATTENTION, GatedDeltaConfig, TargetConfig
from dspine_cluster.models.drafter_config import DrafterConfig

_BF16, _FP32 = 2, 4


@dataclass(frozen=True, slots=True)
class Work:
    """What a part moves and computes."""

    num_bytes: float = 0.0
    num_operations: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.num_bytes + other.num_bytes, self.num_operations + other.num_operations)

    def times(self, count: float) -> Work:
        """The work of `count` such parts."""
        return Work(self.num_bytes * count, self.num_operations * count)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was measured to do at best."""

    bytes_per_s: float
    """Of a copy, bytes read and bytes written."""
    operations_per_s: float
    """Of a large bf16 matrix product."""

    def floor_ms(self, work: Work) -> float:
        """The time below which no implementation of `work` can be."""
        return 1e3 * max(work.num_bytes / self.bytes_per_s, work.num_operations / self.operations_per_s)

    def limit(self, work: Work) -> str:
        """Which of the two ceilings sets the floor."""
        is_memory = work.num_bytes / self.bytes_per_s >= work.num_operations / self.operations_per_s
        return "bytes" if is_memory else "operations"


@dataclass(frozen=True, slots=True)
class PassShape:
    """A pass over blocks of equal width."""

    num_requests: int
    width: int
    """Tokens of a block; 1 is plain decoding."""
    context_tokens: int
    """Cached tokens of each request."""
    num_replayed: int = 0
    """Accepted proposals of each request's previous block, which its state has not seen."""

    @property
    def num_tokens(self) -> int:
        return self.num_requests * self.width


def target_pass(config: TargetConfig, shape: PassShape) -> Work:
    """All layers over the blocks of a pass, without head."""
    mlp = 3 * config.hidden_size * config.intermediate_size
    num_attention, num_delta = config.num_attention_layers, config.num_gated_delta_layers
    work = _product(mlp, shape.num_tokens).times(config.num_layers)
    work += _product(_attention_weights(config), shape.num_tokens).times(num_attention)
    work += _attention(config.num_heads, config.num_kv_heads, config.head_dim, shape).times(num_attention)
    if config.gated_delta is not None:
        work += _product(_delta_weights(config.gated_delta, config.hidden_size), shape.num_tokens).times(
            num_delta
        )
        work += _recurrence(config.gated_delta, shape).times(num_delta)
    return work + Work(_BF16 * 2 * shape.num_tokens * config.hidden_size)


def head(config: TargetConfig, num_rows: int) -> Work:
    """Logits of some rows, float32."""
    return _product(config.vocab_size * config.hidden_size, num_rows) + Work(
        num_rows * (_BF16 * config.hidden_size + _FP32 * config.vocab_size)
    )


def acceptance(config: TargetConfig, num_rows: int) -> Work:
    """One look at the logits."""
    return Work(_FP32 * num_rows * config.vocab_size)


def projector(config: DrafterConfig, num_tokens: int) -> Work:
    """Taps to features: `fc` and `hidden_norm`."""
    num_taps = len(config.target_layer_ids)
    rows = Work(_BF16 * num_tokens * (num_taps + 1) * config.hidden_size)
    return _product(num_taps * config.hidden_size**2, num_tokens) + rows


def draft(config: DrafterConfig, num_blocks: int, context_tokens: int) -> Work:
    """A batch of blocks: backbone, head, injection and transition cache."""
    hidden, query = config.hidden_size, config.num_heads * config.head_dim
    layer = 2 * hidden * query + _key_value_weights(config) + 3 * hidden * config.intermediate_size
    work = injection(config, num_blocks) + transition(config, num_blocks)
    work += _product(layer, num_blocks * config.block_size).times(config.num_layers)
    for number in range(config.num_layers):
        window = config.window(number)
        seen = context_tokens if window is None else min(context_tokens, window - 1)
        shape = PassShape(num_blocks, config.block_size, seen)
        work += _attention(config.num_heads, config.num_kv_heads, config.head_dim, shape, writes=False)
    return work + _product(config.vocab_size * hidden, num_blocks * config.num_proposals)


def injection(config: DrafterConfig, num_blocks: int) -> Work:
    """Adjacent injection after all layers."""
    rank, message, hidden = config.transfer_rank, config.message_size, config.hidden_size
    num_rows = num_blocks * config.num_proposals
    own = _product(hidden * (rank + message), num_rows).times(config.num_layers)
    shared = 3 * rank * message
    operations = 2.0 * shared * num_rows * config.num_layers
    states = _BF16 * 2 * num_blocks * config.block_size * hidden * config.num_layers
    return own + Work(_BF16 * shared + states, operations)


def transition(config: DrafterConfig, num_blocks: int) -> Work:
    """Scores of all pairs of neighbouring candidates; the walk is free. The weights are those of one injection."""
    rank, message, hidden, top_k = (
        config.transfer_rank,
        config.message_size,
        config.hidden_size,
        config.top_k,
    )
    num_rows = num_blocks * config.num_proposals
    weights = hidden * (rank + message) + 3 * rank * message
    gathered = num_rows * top_k * (rank + hidden)  # codes and head rows of the candidates
    once = num_rows * (rank * hidden + rank * message)  # what depends on the state alone
    paired = num_rows * top_k * (2 * rank * message + hidden * message + hidden * top_k)
    return Work(
        _BF16 * (weights + gathered + num_rows * hidden) + _FP32 * num_rows * top_k**2, 2.0 * (once + paired)
    )


def ingest(config: DrafterConfig, num_tokens: int) -> Work:
    """Features of committed tokens to context keys and values of every layer."""
    weights = config.num_layers * _key_value_weights(config)
    written = config.num_layers * 2 * config.num_kv_heads * config.head_dim
    return _product(weights, num_tokens) + Work(_BF16 * num_tokens * (config.hidden_size + written))


def _product(num_weights: int, num_rows: int) -> Work:
    """Weights that are read once, applied to some rows."""
    return Work(_BF16 * num_weights, 2.0 * num_weights * num_rows)


def _attention_weights(config: TargetConfig) -> int:
    query = config.num_heads * config.head_dim
    is_gated = FULL_ATTENTION in config.layer_types and config.gated_delta is not None
    key_value = 2 * config.num_kv_heads * config.head_dim
    return config.hidden_size * (query * (3 if is_gated else 2) + key_value)


def _delta_weights(config: GatedDeltaConfig, hidden_size: int) -> int:
    return hidden_size * (config.conv_dim + 2 * config.value_dim + 2 * config.num_value_heads)


def _key_value_weights(config: DrafterConfig) -> int:
    return 2 * config.hidden_size * config.num_kv_heads * config.head_dim


def _attention(
    num_heads: int, num_kv_heads: int, head_dim: int, shape: PassShape, *, writes: bool = True
) -> Work:
    """One layer's attention over the context and causally inside the block."""
    seen = shape.context_tokens + (shape.width + 1) / 2  # keys a query sees on average
    num_cached = shape.num_requests * shape.context_tokens + (shape.num_tokens if writes else 0)
    return Work(
        _BF16 * 2 * num_kv_heads * head_dim * num_cached, 4.0 * shape.num_tokens * seen * num_heads * head_dim
    )


def _recurrence(config: GatedDeltaConfig, shape: PassShape) -> Work:
    """One layer's states read and moved to their anchors; proposals' inputs written, accepted ones read."""
    state = config.num_value_heads * config.key_head_dim * config.value_head_dim
    past = (config.conv_kernel - 1) * config.conv_dim
    inputs = config.conv_dim + 2 * config.num_value_heads
    num_kept = shape.width - 1 + shape.num_replayed
    return Work(
        shape.num_requests * (2 * (_FP32 * state + _BF16 * past) + _BF16 * num_kept * inputs),
        6.0 * state * shape.num_requests * (shape.width + shape.num_replayed),
    )
