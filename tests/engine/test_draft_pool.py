"""The draft context pool stores rows where their slots say."""

from __future__ import annotations

import torch

from dspine_cluster.engine.draft_pool import DraftPool
from tests.models.drafter_cases import small_config

CPU = torch.device("cpu")


def test_rows_are_written_to_their_slots_and_nowhere_else() -> None:
    pool = DraftPool.create(small_config(), 3, torch.float32, CPU)
    pool.keys.zero_()
    pool.values.zero_()
    keys, values = torch.randn(2, 3, 4, 2, 8)  # [num_layers, n, num_kv_heads, head_dim] each
    slots = [0, 47, 17, 16]
    pool.write(torch.tensor(slots), keys, values)
    for row, slot in enumerate(slots):
        assert torch.equal(pool.keys[:, slot // 16, slot % 16], keys[:, row])
        assert torch.equal(pool.values[:, slot // 16, slot % 16], values[:, row])
    assert int(pool.keys.count_nonzero()) == keys.numel()


def test_page_bytes_are_what_a_page_takes() -> None:
    pool = DraftPool.create(small_config(), 3, torch.bfloat16, CPU)
    assert DraftPool.page_bytes(small_config(), torch.bfloat16) * 3 == pool.keys.nbytes + pool.values.nbytes
    assert pool.num_pages == 3
