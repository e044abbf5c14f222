"""The tensors of the prefix cache: copies of pages, and recurrent states saved in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from dspine_cluster.config import EngineConfig
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.prefix_cache import CacheMemory, PrefixCache
from dspine_cluster.core.prefix_index import PrefixIndex
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.memory import num_checkpoints
from dspine_cluster.engine.pools import FeaturePool, KvPool, StatePool
from dspine_cluster.engine.ranks.followers import FollowedMemory


class EngineMemory:
    """A `CacheMemory` over an engine's pools. A checkpoint takes host memory, pinned beside a GPU, when first used.

    Copies between GPU and host are queued between the passes, in the order in which they are asked for: nothing here
    waits for them, and a saved state is complete before it is loaded or replaced.
    """

    def __init__(self, kv_pool: KvPool, feature_pool: FeaturePool, state_pool: StatePool) -> None:
        self._kv_pool = kv_pool
        self._feature_pool = feature_pool
        self._state_pool = state_pool
        self._checkpoints: dict[int, list[Tensor]] = {}

    def copy_page(self, source: int, target: int) -> None:
        """Copy the K/V and features of a page."""
        for pool in (self._kv_pool.keys, self._kv_pool.values):
            pool[:, target] = pool[:, source]
        self._feature_pool.copy_page(source, target)

    def complete_page(self, source: int, target: int) -> None:
        """Give a page the features that it lacks and `source`, a page of the same tokens, has."""
        self._feature_pool.complete_page(source, target)

    def save_state(self, slot: int, checkpoint: int) -> None:
        """Save the recurrent state of a slot, without the inputs that wait to be replayed, under a number."""
        states = [tensor[:, slot] for tensor in self._state_pool.live_tensors]
        if checkpoint not in self._checkpoints:
            self._checkpoints[checkpoint] = [
                torch.empty(state.shape, dtype=state.dtype, pin_memory=state.is_cuda) for state in states
            ]
        for saved, state in zip(self._checkpoints[checkpoint], states, strict=True):
            saved.copy_(state.contiguous(), non_blocking=True)

    def load_state(self, checkpoint: int, slot: int) -> None:
        """Give a slot a saved state. No input waits to be replayed in it then."""
        saved = self._checkpoints[checkpoint]
        for tensor, state in zip(self._state_pool.live_tensors, saved, strict=True):
            tensor[:, slot].copy_(state, non_blocking=True)
        self._state_pool.num_pending[slot] = 0


def make_prefix_cache(engine: Engine, config: EngineConfig) -> PrefixCache:
    """The prefix cache over an engine's pools; off, it only hands out pages."""
    has_states = engine.target.config.num_gated_delta_layers > 0
    index = PrefixIndex(
        PagePool(engine.num_pages),
        has_states=has_states,
        max_checkpoints=num_checkpoints(config, engine.target.config, engine.num_pages),
    )
    memory: CacheMemory = EngineMemory(engine.kv_pool, engine.feature_pool, engine.state_pool)
    if engine.followers is not None:
        memory = FollowedMemory(memory, engine.followers)
    return PrefixCache(index, memory, has_states=has_states, is_enabled=config.prefix_cache)
