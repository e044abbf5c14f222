"""What `gpu_round` checks of a drafter's kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_checks import CONTEXTS, VOCABULARY, Check, Draws, Outcome, beside_reference
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.types import PAGE_TOKENS
from dspine_kernels import draft_attention, injection, transition_cache
from dspine_kernels.injection import InjectionWeights


def drafter_checks(config: DrafterConfig, draws: Draws) -> Iterator[Check]:
    """Checks at a drafter's dimensions."""
    yield draft_attention_check(config, draws)
    yield injection_check(config, draws)
    yield transition_check(config, draws)
    yield walk_check(config, draws)


def draft_attention_check(config: DrafterConfig, draws: Draws) -> Check:
    """Blocks that see contexts of unequal length, the longest through a window."""
    num_pages = -(-max(CONTEXTS) // PAGE_TOKENS)
    pages = (len(CONTEXTS) * num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
    block = (len(CONTEXTS), config.block_size)

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        starts: Tensor,
        anchors_at: Tensor,
    ) -> Outcome:
        plan = draft_attention.plan(
            table,
            torch.zeros_like(starts),
            starts,
            anchors_at,
            block_size=config.block_size,
            num_groups=config.num_heads // config.num_kv_heads,
            window=min(CONTEXTS[-1] // 2, config.sliding_window or CONTEXTS[-1]),
            is_causal=True,
            dtype=query.dtype,
        )
        return (draft_attention.attend(query, key, value, keys, values, plan),)

    table = torch.arange(pages[0], device=draws.device).view(len(CONTEXTS), num_pages)
    compare = beside_reference(
        run,
        draws.normal(*block, config.num_heads, config.head_dim),
        draws.normal(*block, config.num_kv_heads, config.head_dim),
        draws.normal(*block, config.num_kv_heads, config.head_dim),
        draws.normal(*pages),
        draws.normal(*pages),
        table,
        draws.longs(3, 0, 0),
        draws.longs(*CONTEXTS),
    )
    return Check("draft_attention", compare)


def injection_check(config: DrafterConfig, draws: Draws) -> Check:
    def run(hidden: Tensor, anchors: Tensor, codes: Tensor, weights: InjectionWeights) -> Outcome:
        return (injection.inject_after_anchors(hidden, anchors, codes, weights),)

    hidden = draws.normal(2, config.block_size, config.hidden_size)
    anchors = draws.below(VOCABULARY, 2)
    compare = beside_reference(run, hidden, anchors, _codes(config, draws), _weights(config, draws))
    return Check("injection", compare)


def transition_check(config: DrafterConfig, draws: Draws) -> Check:
    def run(
        states: Tensor,
        anchors: Tensor,
        candidates: Tensor,
        codes: Tensor,
        lm_head: Tensor,
        weights: InjectionWeights,
        norm_weight: Tensor,
    ) -> Outcome:
        eps = config.rms_norm_eps
        return (
            transition_cache.scores(states, anchors, candidates, codes, lm_head, weights, norm_weight, eps),
        )

    compare = beside_reference(
        run,
        draws.normal(2, config.num_proposals, config.hidden_size),
        draws.below(VOCABULARY, 2),
        draws.below(VOCABULARY, 2, config.num_proposals, config.top_k),
        _codes(config, draws),
        draws.normal(VOCABULARY, config.hidden_size, std=0.02),
        _weights(config, draws),
        1.0 + draws.normal(config.hidden_size, std=0.1),
    )
    return Check("transition_cache.scores", compare)


def walk_check(config: DrafterConfig, draws: Draws) -> Check:
    """Chosen tokens and the distributions that they were drawn from, at temperatures 0, 1 and 0.5."""

    def run(rows: Tensor, candidates: Tensor, temperatures: Tensor, noise: Tensor) -> Outcome:
        return transition_cache.walk(rows, candidates, temperatures, noise.double())

    temperatures = torch.tensor([0.0, 1.0, 0.5], device=draws.device)
    shape = (3, config.num_proposals, config.top_k)
    noise = -(-draws.uniform(*shape).clamp(1e-6, 1 - 1e-6).log()).log()
    compare = beside_reference(
        run,
        draws.normal(*shape, config.top_k, std=2.0, dtype=torch.float32),
        draws.below(VOCABULARY, *shape),
        temperatures,
        noise * (temperatures > 0)[:, None, None],
    )
    return Check("transition_cache.walk", compare, limit=1e-5)


def _codes(config: DrafterConfig, draws: Draws) -> Tensor:
    return torch.nn.functional.normalize(draws.normal(VOCABULARY, config.transfer_rank), dim=-1)


def _weights(config: DrafterConfig, draws: Draws) -> InjectionWeights:
    rank, message, hidden = config.transfer_rank, config.message_size, config.hidden_size
    return InjectionWeights(
        readout=draws.normal(rank, hidden, std=hidden**-0.5),
        write=draws.normal(hidden, message, std=message**-0.5),
        message=draws.normal(message, rank, std=rank**-0.5),
        receiver_gate=draws.normal(message, rank, std=rank**-0.5),
        predecessor_gate=draws.normal(message, rank, std=rank**-0.5),
        bias=draws.normal(message, std=0.1),
    )
