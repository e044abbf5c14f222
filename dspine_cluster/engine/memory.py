"""How much memory an engine's pools take, and how many pages fit."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from dspine_cluster.config import EngineConfig
from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.engine.pools import FeaturePool, KvPool, StatePool
from dspine_cluster.errors import ConfigError
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.types import PAGE_TOKENS

_CACHE_FACTOR = 4
"""Cached prefixes may take up to three times the pages that all running requests can fill, if there is memory."""


@dataclass(frozen=True, slots=True)
class PoolBytes:
    """Bytes of the pools' units, over all layers."""

    page: int
    """One page of K/V and features."""
    state: int
    """One request's live recurrent state."""
    pending: int
    """One request's raw block inputs, kept for replay."""

    @classmethod
    def of(cls, config: TargetConfig, feature_size: int, dtype: torch.dtype) -> PoolBytes:
        state, pending = StatePool.slot_bytes(config, dtype)
        page = KvPool.page_bytes(config, dtype) + FeaturePool.page_bytes(feature_size, dtype)
        return cls(page=page, state=state, pending=pending)


def num_pages(config: EngineConfig, unit: PoolBytes, free_bytes: int) -> int:
    """Pages that the pool holds: as configured, or what fits, but no more than running requests and cache use.

    Raises:
        ConfigError: what is free does not hold one request of the maximum length.
    """
    if config.pool_tokens is not None:
        return config.pool_tokens // PAGE_TOKENS
    slots_bytes = config.max_running_requests * (unit.state + unit.pending)
    pages = int(free_bytes * config.memory_fraction - slots_bytes) // max(1, unit.page)
    if pages * PAGE_TOKENS < config.max_model_len_tokens + PAGE_TOKENS:
        raise ConfigError(
            f"{free_bytes / 1e9:.2f} GB free at memory_fraction {config.memory_fraction} hold "
            f"{max(0, pages) * PAGE_TOKENS} tokens beside the states of {config.max_running_requests} requests, "
            f"too few for max_model_len_tokens {config.max_model_len_tokens}; lower max_model_len_tokens or "
            "max_running_requests, or raise memory_fraction"
        )
    num_running = config.max_running_requests * num_pages_for(config.max_model_len_tokens + PAGE_TOKENS)
    return min(pages, num_running * (_CACHE_FACTOR if config.prefix_cache else 1))


def num_checkpoints(config: EngineConfig, target: TargetConfig, num_pages: int) -> int:
    """Recurrent states that the prefix cache saves at most: what fits, and no more than there are pages to end at.
    `target` is a rank's part."""
    if not config.prefix_cache or target.gated_delta is None:
        return 0
    state_bytes, _ = StatePool.slot_bytes(target, getattr(torch, config.dtype))
    state_bytes *= config.tensor_parallel  # every rank saves its part
    limit_bytes = config.checkpoint_bytes
    if limit_bytes is None:
        limit_bytes = psutil.virtual_memory().available // 10
    return min(num_pages, limit_bytes // state_bytes)


def free_bytes(device: torch.device, num_ranks: int = 1) -> int:
    """Memory that each rank may allocate on its device now; `device` is the first rank's. GPUs are one a rank, and the
    first has most to hold."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available) // num_ranks
