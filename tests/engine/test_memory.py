from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dspine_cluster.config import EngineConfig
from dspine_cluster.engine.memory import PoolBytes, free_bytes, num_checkpoints, num_pages
from dspine_cluster.engine.pools import StatePool
from dspine_cluster.errors import ConfigError
from tests.verifier.harness import dense_config, hybrid_config

UNIT = PoolBytes(page=1000, state=5000, pending=100)
CONFIG = EngineConfig(max_model_len_tokens=160, max_running_requests=4, memory_fraction=0.5)


def test_pages_take_the_share_of_free_memory_that_states_leave() -> None:
    assert num_pages(CONFIG, UNIT, free_bytes=2 * (4 * 5100 + 20 * 1000)) == 20


def test_more_pages_than_running_requests_can_fill_are_taken_for_cached_prefixes_alone() -> None:
    assert num_pages(CONFIG, UNIT, free_bytes=10**9) == 4 * (4 * 11)
    assert num_pages(replace(CONFIG, prefix_cache=False), UNIT, free_bytes=10**9) == 4 * 11


def test_checkpoints_take_the_bytes_that_they_are_given() -> None:
    state_bytes, _ = StatePool.slot_bytes(hybrid_config(), torch.float32)
    config = replace(CONFIG, checkpoint_bytes=5 * state_bytes + 1)
    assert num_checkpoints(config, hybrid_config(), num_pages=100) == 5
    assert num_checkpoints(config, hybrid_config(), num_pages=3) == 3


def test_a_share_of_the_host_s_memory_is_used_for_checkpoints_unless_bytes_are_given() -> None:
    assert num_checkpoints(CONFIG, hybrid_config(), num_pages=10) == 10


def test_no_state_is_saved_for_a_dense_target_or_without_a_cache() -> None:
    assert num_checkpoints(CONFIG, dense_config(), num_pages=10) == 0
    assert num_checkpoints(replace(CONFIG, prefix_cache=False), hybrid_config(), num_pages=10) == 0


def test_a_pool_that_cannot_hold_one_request_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="lower max_model_len_tokens"):
        num_pages(CONFIG, UNIT, free_bytes=30_000)


def test_a_configured_pool_does_not_depend_on_free_memory() -> None:
    config = EngineConfig(max_model_len_tokens=160, pool_tokens=320)
    assert num_pages(config, UNIT, free_bytes=0) == 20


def test_a_configured_pool_must_hold_one_request_and_a_block() -> None:
    with pytest.raises(ConfigError, match="pool_tokens"):
        EngineConfig(max_model_len_tokens=160, pool_tokens=160)


def test_free_memory_of_the_cpu_is_positive() -> None:
    assert free_bytes(torch.device("cpu")) > 0
