"""What `gpu_round` checks: every kernel that a round launches, and whole passes through a few layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_checks import Check, beside_reference
from dspine_cluster.bench.gpu_models import PairConfig
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.types import PAGE_TOKENS
from dspine_kernels import draft_attention, injection, paged_attention, transition_cache
from dspine_kernels.injection import InjectionWeights

_CONTEXTS = (37, 0, 300)
"""Cached tokens of the requests: a page begun, none, several shares of keys."""
_VOCABULARY = 1000


class Inputs:
    """Random inputs on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._random = torch.Generator(device).manual_seed(2)

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        numbers = torch.randn(shape, device=self.device, generator=self._random)
        return (numbers * std).to(dtype)

    def below(self, bound: int, *shape: int) -> Tensor:
        return torch.randint(bound, shape, device=self.device, generator=self._random)

    def longs(self, *values: int) -> Tensor:
        return torch.tensor(values, device=self.device)


def all_checks(config: PairConfig, device: torch.device) -> Iterator[Check]:
    """Checks at the dimensions of a pair; made one at a time, for they hold memory."""
    inputs = Inputs(device)
    yield paged_attention_check(config.target, inputs)
    yield draft_attention_check(config.drafter, inputs)
    yield injection_check(config.drafter, inputs)
    yield transition_check(config.drafter, inputs)
    yield walk_check(config.drafter, inputs)


def paged_attention_check(config: TargetConfig, inputs: Inputs) -> Check:
    """Blocks of unequal width over contexts of unequal length."""
    widths = (16, 1, 7)
    tables = [[3 * i + b for i in range(-(-(c + 16) // PAGE_TOKENS))] for b, c in enumerate(_CONTEXTS)]
    num_pages = 1 + max(max(table) for table in tables)
    pages = (num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)

    def run(query: Tensor, keys: Tensor, values: Tensor, device: torch.device) -> Tensor:
        plan = paged_attention.plan(tables, widths, _CONTEXTS, page_tokens=PAGE_TOKENS, device=device)
        return paged_attention.attend(query, keys, values, plan, config.head_dim**-0.5)

    query = inputs.normal(sum(widths), config.num_heads, config.head_dim)
    caches = inputs.normal(*pages), inputs.normal(*pages)
    return Check("paged_attention", beside_reference(run, query, *caches, inputs.device))


def draft_attention_check(config: DrafterConfig, inputs: Inputs) -> Check:
    """Blocks that see contexts of unequal length, the longest through a window."""
    num_pages = -(-max(_CONTEXTS) // PAGE_TOKENS)
    pages = (len(_CONTEXTS) * num_pages, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
    block = (len(_CONTEXTS), config.block_size)

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        starts: Tensor,
        anchors_at: Tensor,
    ) -> Tensor:
        plan = draft_attention.plan(
            table,
            torch.zeros_like(starts),
            starts,
            anchors_at,
            block_size=config.block_size,
            num_groups=config.num_heads // config.num_kv_heads,
            window=min(_CONTEXTS[-1] // 2, config.sliding_window or _CONTEXTS[-1]),
            is_causal=True,
            dtype=query.dtype,
        )
        return draft_attention.attend(query, key, value, keys, values, plan)

    table = torch.arange(pages[0], device=inputs.device).view(len(_CONTEXTS), num_pages)
    compare = beside_reference(
        run,
        inputs.normal(*block, config.num_heads, config.head_dim),
        inputs.normal(*block, config.num_kv_heads, config.head_dim),
        inputs.normal(*block, config.num_kv_heads, config.head_dim),
        inputs.normal(*pages),
        inputs.normal(*pages),
        table,
        inputs.longs(3, 0, 0),
        inputs.longs(*_CONTEXTS),
    )
    return Check("draft_attention", compare)


def injection_check(config: DrafterConfig, inputs: Inputs) -> Check:
    hidden = inputs.normal(2, config.block_size, config.hidden_size)
    codes = _codes(config, inputs)
    compare = beside_reference(
        injection.inject_after_anchors, hidden, inputs.below(_VOCABULARY, 2), codes, _weights(config, inputs)
    )
    return Check("injection", compare)


def transition_check(config: DrafterConfig, inputs: Inputs) -> Check:
    def run(
        states: Tensor,
        anchors: Tensor,
        candidates: Tensor,
        codes: Tensor,
        lm_head: Tensor,
        weights: InjectionWeights,
        norm_weight: Tensor,
    ) -> Tensor:
        eps = config.rms_norm_eps
        return transition_cache.scores(states, anchors, candidates, codes, lm_head, weights, norm_weight, eps)

    compare = beside_reference(
        run,
        inputs.normal(2, config.num_proposals, config.hidden_size),
        inputs.below(_VOCABULARY, 2),
        inputs.below(_VOCABULARY, 2, config.num_proposals, config.top_k),
        _codes(config, inputs),
        inputs.normal(_VOCABULARY, config.hidden_size, std=0.02),
        _weights(config, inputs),
        1.0 + inputs.normal(config.hidden_size, std=0.1),
    )
    return Check("transition_cache.scores", compare)


def walk_check(config: DrafterConfig, inputs: Inputs) -> Check:
    """Chosen tokens and the distributions that they were drawn from, at temperatures 0, 1 and 0.5."""

    def run(rows: Tensor, candidates: Tensor, temperatures: Tensor, noise: Tensor) -> Tensor:
        walk = transition_cache.walk(rows, candidates, temperatures, noise.double())
        return torch.cat((walk.tokens.float().unsqueeze(-1), walk.probs, walk.confidence.unsqueeze(-1)), -1)

    temperatures = torch.tensor([0.0, 1.0, 0.5], device=inputs.device)
    shape = (3, config.num_proposals, config.top_k)
    noise = -(-inputs.normal(*shape, dtype=torch.float32).abs().clamp(1e-3, 1.0).log()).clamp(1e-3).log()
    compare = beside_reference(
        run,
        inputs.normal(*shape, config.top_k, std=2.0, dtype=torch.float32),
        inputs.below(_VOCABULARY, *shape),
        temperatures,
        noise * (temperatures > 0)[:, None, None],
    )
    return Check("transition_cache.walk", compare, limit=1e-5)


def _codes(config: DrafterConfig, inputs: Inputs) -> Tensor:
    return torch.nn.functional.normalize(inputs.normal(_VOCABULARY, config.transfer_rank), dim=-1)


def _weights(config: DrafterConfig, inputs: Inputs) -> InjectionWeights:
    rank, message, hidden = config.transfer_rank, config.message_size, config.hidden_size
    return InjectionWeights(
        readout=inputs.normal(rank, hidden, std=hidden**-0.5),
        write=inputs.normal(hidden, message, std=message**-0.5),
        message=inputs.normal(message, rank, std=rank**-0.5),
        receiver_gate=inputs.normal(message, rank, std=rank**-0.5),
        predecessor_gate=inputs.normal(message, rank, std=rank**-0.5),
        bias=inputs.normal(message, std=0.1),
    )
