"""What `gpu_round` checks: every kernel that a round launches, and whole passes through a few layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_checks import CONTEXTS, VOCABULARY, Check, Draws, Outcome, beside_reference
from dspine_cluster.bench.gpu_draft_kernels import drafter_checks
from dspine_cluster.bench.gpu_models import PairConfig
from dspine_cluster.bench.gpu_pass_check import pass_check
from dspine_cluster.models.config import GatedDeltaConfig, TargetConfig
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.types import MAX_PROPOSALS, PAGE_TOKENS
from dspine_kernels import acceptance, gated_delta, kv_write, paged_attention
from dspine_kernels.acceptance import BlockRows
from dspine_kernels.gated_delta import Inputs, States, Weights
from dspine_kernels.kv_write import HeadTransform


def all_checks(config: PairConfig, device: torch.device) -> Iterator[Check]:
    """Checks at the dimensions of a pair; made one at a time, for they hold memory."""
    draws = Draws(device)
    yield from target_checks(config.target, draws)
    yield from drafter_checks(config.drafter, draws)
    yield acceptance_check(config.drafter, draws)
    yield pass_check(config.target, device)


def target_checks(config: TargetConfig, draws: Draws) -> Iterator[Check]:
    """Checks at a target's dimensions."""
    yield kv_write_check(config, draws)
    yield paged_attention_check(config, draws)
    if config.gated_delta is not None:
        yield gated_delta_check(config.gated_delta, draws, widths=(16, 3, 1), num_pending=(0, 15, 4))
        yield gated_delta_check(config.gated_delta, draws, widths=(1, 1, 1), num_pending=(0, 0, 0))


def kv_write_check(config: TargetConfig, draws: Draws) -> Check:
    """Queries that come back, and keys and values in pages that held nothing."""
    slots = draws.longs(3, 40, 17, 0, 31)
    num_rows = len(slots)

    def run(
        query: Tensor, key: Tensor, value: Tensor, scale: Tensor, angles: Tensor, slots: Tensor
    ) -> Outcome:
        pages = key.new_zeros((3, PAGE_TOKENS, config.num_kv_heads, config.head_dim))
        values = torch.zeros_like(pages)
        is_hybrid = config.gated_delta is not None
        scale = 1.0 + scale.float() if is_hybrid else scale
        cos, sin = angles.cos().to(key.dtype), angles.sin().to(key.dtype)
        heads = HeadTransform(scale, scale.flip(0), config.rms_norm_eps, not is_hybrid, cos, sin)
        placed = kv_write.write(query, key, value, heads, pages, values, slots)
        return placed, pages, values

    compare = beside_reference(
        run,
        draws.normal(num_rows, config.num_heads, config.head_dim),
        draws.normal(num_rows, config.num_kv_heads, config.head_dim),
        draws.normal(num_rows, config.num_kv_heads, config.head_dim),
        draws.normal(config.head_dim, std=0.5),
        draws.normal(num_rows, 1, config.rotary_dim // 2, dtype=torch.float32),
        slots,
    )
    return Check("kv_write", compare)


def paged_attention_check(config: TargetConfig, draws: Draws) -> Check:
    """Blocks of unequal width over contexts of unequal length."""
    widths = (16, 1, 7)
    tables = [[3 * i + b for i in range(-(-(c + 16) // PAGE_TOKENS))] for b, c in enumerate(CONTEXTS)]
    num_pages = 1 + max(max(table) for table in tables)
    pages = (num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)

    def run(query: Tensor, keys: Tensor, values: Tensor, device: torch.device) -> Outcome:
        plan = paged_attention.plan(tables, widths, CONTEXTS, page_tokens=PAGE_TOKENS, device=device)
        return (paged_attention.attend(query, keys, values, plan, config.head_dim**-0.5),)

    query = draws.normal(sum(widths), config.num_heads, config.head_dim)
    caches = draws.normal(*pages), draws.normal(*pages)
    return Check("paged_attention", beside_reference(run, query, *caches, draws.device))


def acceptance_check(config: DrafterConfig, draws: Draws) -> Check:
    """The likeliest tokens, and what three blocks commit that were sampled, the second without proposals."""
    num_rows = (config.block_size, 1, 6)
    total = sum(num_rows)
    probs = draws.normal(total, VOCABULARY, std=2.0, dtype=torch.float32).softmax(-1)
    proposals = probs.argmax(-1)  # most are accepted
    proposals[4::5] = 7
    candidates = torch.cat((proposals[:, None], draws.below(VOCABULARY, total, config.top_k - 1)), -1)
    draft_probs = draws.normal(total, config.top_k, dtype=torch.float32).softmax(-1)
    starts = draws.longs(0, num_rows[0], num_rows[0] + 1, total)
    draft_probs[starts[1:] - 1] = 0.0

    def run(probs: Tensor, rows: BlockRows, candidates: Tensor, q: Tensor, uniforms: Tensor) -> Outcome:
        accepted = acceptance.accept_sampled(probs, rows, candidates, q, uniforms.double())
        return acceptance.argmax(probs), *accepted

    compare = beside_reference(
        run,
        probs,
        BlockRows(starts, proposals, max(num_rows)),
        candidates,
        draft_probs,
        0.8 * draws.uniform(total),
    )
    return Check("acceptance", compare, limit=0.0)


def gated_delta_check(
    config: GatedDeltaConfig, draws: Draws, *, widths: tuple[int, ...], num_pending: tuple[int, ...]
) -> Check:
    """Outputs of blocks, and states moved to their anchors in slots that are no neighbours."""
    slots, num_slots = (4, 0, 2), 5
    num_heads = config.num_value_heads

    def run(
        new: Tensor, state: Tensor, past: Tensor, pending: Tensor, conv: Tensor, gates: Tensor
    ) -> Outcome:
        parts = [config.conv_dim, num_heads, num_heads]
        states = States(
            state.float(), past, Inputs(*(x.contiguous() for x in torch.split(pending, parts, -1)))
        )
        weights = Weights(conv.float(), gates[0].float(), gates[1], config.num_key_heads, config.key_head_dim)
        plan = gated_delta.plan(slots, widths, num_pending, device=new.device)
        out = gated_delta.verify_slots(
            Inputs(*(x.contiguous() for x in torch.split(new, parts, -1))), weights, states, plan
        )
        return out, states.state, states.conv_state, *states.pending

    num_inputs = config.conv_dim + 2 * num_heads
    compare = beside_reference(
        run,
        draws.normal(sum(widths), num_inputs),
        draws.normal(num_slots, num_heads, config.key_head_dim, config.value_head_dim),
        draws.normal(num_slots, config.conv_kernel - 1, config.conv_dim),
        draws.normal(num_slots, MAX_PROPOSALS, num_inputs),
        draws.normal(config.conv_dim, config.conv_kernel, std=0.5),
        draws.normal(2, num_heads),
    )
    return Check(f"gated_delta, blocks of {', '.join(map(str, widths))}", compare)
