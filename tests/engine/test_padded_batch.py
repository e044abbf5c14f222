"""The buffers of a padded pass say what plans of the pass say."""

from __future__ import annotations

import torch

from dspine_cluster.core.graph_buckets import GraphBucket
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.padded_batch import PaddedBatch
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_kernels.gated_delta import blocks as delta_blocks
from dspine_kernels.paged_attention import ragged
from tests.verifier.harness import hybrid_config

CPU = torch.device("cpu")
BLOCKS = [
    Segment([5, 6, 7], 30, [4, 2, 9], 2),
    Segment([8], 0, [7], 0),
    Segment([1, 2], 15, [1, 3], 3),
]


def filled_batch() -> PaddedBatch:
    """A batch that held a larger pass before."""
    kv_pool = KvPool.create(hybrid_config(), 10, torch.float32, CPU)
    state_pool = StatePool(hybrid_config(), 4, torch.float32, CPU)
    batch = PaddedBatch(GraphBucket(4, 16, max_width=16, replays=True), 8, kv_pool, state_pool)
    batch.fill(PackedRows.of([Segment([9] * 4, 100, list(range(8)), slot) for slot in range(4)]))
    for slot, num_accepted in ((2, 5), (3, 1)):
        state_pool.set_pending(slot, num_accepted)
    batch.fill(PackedRows.of(BLOCKS))
    return batch


def test_rows_are_the_blocks_end_to_end_and_then_belong_to_nobody() -> None:
    batch = filled_batch()
    assert batch.tokens.tolist() == [5, 6, 7, 8, 1, 2] + [0] * 10
    assert batch.positions.tolist() == [30, 31, 32, 0, 15, 16] + [0] * 10
    slots = [2 * 16 + 14, 2 * 16 + 15, 9 * 16, 7 * 16, 1 * 16 + 15, 3 * 16]
    assert batch.slots.tolist() == slots + [-1] * 10
    assert batch.feature_rows.tolist() == slots + [160] * 10


def test_kernels_read_what_they_would_from_plans_of_the_pass() -> None:
    fields = filled_batch().inputs.device
    lengths = [len(block.tokens) for block in BLOCKS]
    attention = ragged.plan(
        [block.pages for block in BLOCKS],
        lengths,
        [block.start for block in BLOCKS],
        page_tokens=16,
        device=CPU,
    )
    recurrence = delta_blocks.plan([2, 0, 3], lengths, [5, 0, 1], first_row=0, device=CPU)
    assert fields["row_starts"].dtype == attention.row_starts.dtype == recurrence.row_starts.dtype
    assert fields["row_starts"][:4].tolist() == attention.row_starts.tolist()
    assert fields["row_starts"][:4].tolist() == recurrence.row_starts.tolist()
    first_positions, state_slots, num_pending = fields["requests"][:, :3].tolist()
    assert first_positions == attention.first_positions.tolist()
    assert state_slots == recurrence.slots.tolist()
    assert num_pending == recurrence.num_pending.tolist()
    for own, planned, block in zip(fields["page_table"], attention.page_table, BLOCKS, strict=False):
        num_pages = len(block.pages)
        assert own[:num_pages].tolist() == planned[:num_pages].tolist()


def test_requests_beyond_the_pass_have_no_rows() -> None:
    fields = filled_batch().inputs.device
    assert fields["row_starts"].tolist()[3:] == [6, 6]
