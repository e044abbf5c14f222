from __future__ import annotations

import numpy as np
import pytest
import torch

from dspine_cluster.engine.pools import FeaturePool, KvPool, StatePool, fetch_rows
from tests.verifier.harness import dense_config, hybrid_config

CPU = torch.device("cpu")


def test_a_page_takes_the_bytes_it_says() -> None:
    config = hybrid_config()
    pool = KvPool.create(config, 3, torch.bfloat16, CPU)
    assert pool.keys.nbytes + pool.values.nbytes == 3 * KvPool.page_bytes(config, torch.bfloat16)
    assert FeaturePool.create(5, 3, torch.float32, CPU).rows.nbytes == 3 * FeaturePool.page_bytes(
        5, torch.float32
    )


def test_features_are_read_alike_on_every_device() -> None:
    pool = FeaturePool.create(5, 3, torch.bfloat16, CPU)
    pool.storage.copy_(torch.randn(pool.storage.shape, generator=torch.Generator().manual_seed(0)))
    slots = np.array([40, 3, 3, 0])
    read = pool.read(slots)
    assert read.shape == (4, 10)
    assert (torch.from_numpy(read).view(torch.bfloat16) == pool.rows[slots]).all()
    assert (read == fetch_rows(pool.rows, slots)).all()


def test_a_slot_takes_the_bytes_it_says() -> None:
    config = hybrid_config()
    pool = StatePool(config, 3, torch.bfloat16, CPU)
    state, pending = StatePool.slot_bytes(config, torch.bfloat16)
    assert pool.state.nbytes + pool.conv_state.nbytes == 3 * state
    assert pool.pending_qkv.nbytes + pool.pending_a.nbytes + pool.pending_b.nbytes == 3 * pending


def test_a_slot_that_is_taken_again_has_an_empty_past() -> None:
    pool = StatePool(hybrid_config(), 1, torch.float32, CPU)
    slot = pool.allocate()
    pool.state.fill_(1.0)
    pool.conv_state.fill_(1.0)
    pool.set_pending(slot, 3)
    pool.release(slot)
    slot = pool.allocate()
    assert not pool.state[:, slot].any()
    assert not pool.conv_state[:, slot].any()
    assert pool.num_pending[slot] == 0


def test_recurrent_states_are_fp32_in_a_bf16_model() -> None:
    pool = StatePool(hybrid_config(), 1, torch.bfloat16, CPU)
    assert (pool.state.dtype, pool.conv_state.dtype) == (torch.float32, torch.bfloat16)


def test_a_slot_released_twice_is_a_bug() -> None:
    pool = StatePool(hybrid_config(), 2, torch.float32, CPU)
    slot = pool.allocate()
    pool.release(slot)
    with pytest.raises(AssertionError):
        pool.release(slot)


def test_a_dense_target_has_slots_without_states() -> None:
    pool = StatePool(dense_config(), 2, torch.float32, CPU)
    pool.release(pool.allocate())
    assert StatePool.slot_bytes(dense_config(), torch.float32) == (0, 0)
