from __future__ import annotations

import pytest
import torch

from dspine_cluster.config import EngineConfig
from dspine_cluster.engine.cache_memory import EngineMemory, make_prefix_cache
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.config import TargetConfig
from tests.verifier.harness import dense_config, hybrid_config, random_engine, random_target


def make_engine(config: TargetConfig) -> Engine:
    engine = random_engine(random_target(config, seed=0), pool_tokens=64, num_slots=3)
    for pool in (engine.kv_pool.keys, engine.kv_pool.values, engine.feature_pool.rows):
        pool.normal_()
    return engine


def memory_of(engine: Engine) -> EngineMemory:
    return EngineMemory(engine.kv_pool, engine.feature_pool, engine.state_pool)


def test_a_copied_page_holds_the_same_keys_values_and_features() -> None:
    engine = make_engine(dense_config())
    memory_of(engine).copy_page(1, 3)
    for pool in (engine.kv_pool.keys, engine.kv_pool.values):
        assert torch.equal(pool[:, 3], pool[:, 1])
        assert not torch.equal(pool[:, 2], pool[:, 1])
    rows = engine.feature_pool.rows
    assert torch.equal(rows[48:64], rows[16:32])
    assert not torch.equal(rows[32:48], rows[16:32])


def test_a_page_without_features_can_be_copied() -> None:
    engine = Engine(random_target(dense_config(), seed=0), num_pages=2, num_slots=1)
    engine.kv_pool.keys.normal_()
    memory_of(engine).copy_page(0, 1)
    assert torch.equal(engine.kv_pool.keys[:, 1], engine.kv_pool.keys[:, 0])


def test_a_saved_state_comes_back_in_any_slot_without_pending_inputs() -> None:
    engine = make_engine(hybrid_config())
    pool, memory = engine.state_pool, memory_of(engine)
    for tensor in pool.live_tensors:
        tensor.normal_()
    expected = [tensor[:, 0].clone() for tensor in pool.live_tensors]
    memory.save_state(0, checkpoint=7)
    for tensor in pool.live_tensors:
        tensor[:, 0] = 0
    pool.set_pending(2, 5)
    memory.load_state(7, slot=2)
    assert all(torch.equal(t[:, 2], e) for t, e in zip(pool.live_tensors, expected, strict=True))
    assert pool.num_pending[2] == 0


def test_a_number_used_again_holds_the_later_state() -> None:
    engine = make_engine(hybrid_config())
    pool, memory = engine.state_pool, memory_of(engine)
    for value in (1.0, 2.0):
        for tensor in pool.live_tensors:
            tensor[:, 0] = value
        memory.save_state(0, checkpoint=0)
    memory.load_state(0, slot=1)
    assert all((tensor[:, 1] == 2.0).all() for tensor in pool.live_tensors)


@pytest.mark.parametrize("config", [hybrid_config(), dense_config()], ids=["hybrid", "dense"])
def test_a_cache_spans_the_engine_s_pages(config: TargetConfig) -> None:
    cache = make_prefix_cache(make_engine(config), EngineConfig())
    assert cache.index.num_available == 4
