"""The blocks of a pass in buffers that stay in place, padded to a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.core.graph_buckets import GraphBucket
from dspine_cluster.engine.batch import PackedRows, SegmentGroup
from dspine_cluster.engine.pools import KvPool, StatePool
from dspine_cluster.engine.staging import Staging
from dspine_kernels import gated_delta, kv_write, paged_attention
from dspine_kernels.dispatch import uses_triton
from dspine_kernels.gated_delta import BlockPlan, Inputs, Weights
from dspine_kernels.kv_write import HeadTransform
from dspine_kernels.paged_attention import RaggedPlan

_NOWHERE = -1
"""The slot of rows that belong to no request."""


class _Group(NamedTuple):
    """The rows that operations take, and their plans."""

    rows: slice
    recurrence: gated_delta.Plan
    attention: paged_attention.Plan


class PaddedBatch:
    """The `Cache` of the passes of one bucket.

    Rows beyond the blocks' own belong to no request, and requests beyond them have no rows; neither touches a pool.
    Where operations are Triton kernels, these read all that from the buffers; what they leave in rows that nobody
    owns may be anything. Elsewhere operations are planned anew for every pass, over the rows that are owned.
    """

    def __init__(self, bucket: GraphBucket, num_pages: int, kv_pool: KvPool, state_pool: StatePool) -> None:
        """Requests may have up to `num_pages` pages."""
        self.num_tokens = bucket.num_tokens
        self._kv_pool, self._state_pool = kv_pool, state_pool
        self.inputs = Staging(_fields(bucket, num_pages), kv_pool.keys.device)
        num_slots = kv_pool.keys.shape[1] * kv_pool.keys.shape[2]
        self._padding = np.array([[0], [0], [_NOWHERE], [num_slots]])  # of `rows`
        rows = self.inputs.device["rows"]
        self.tokens, self.positions = rows[0], rows[1]  # int64 [num_tokens]; the others alike
        self.slots = rows[2]  # page * 16 + offset; padding: nowhere
        self.feature_rows = rows[3]  # as `slots`; padding: the row after the last
        self._num_rows, self._num_requests = bucket.num_tokens, bucket.num_requests
        """Up to these there may be something of the pass before; beyond, fields are padded."""
        self._is_recordable = uses_triton(kv_pool.keys)
        self._group: _Group | None = None
        if self._is_recordable:
            self._group = _group_over(self.inputs.device, bucket)

    def fill(self, blocks: PackedRows | None) -> None:
        """Take the blocks of the next pass; None: it has no rows."""
        host = self.inputs.host
        num_rows = num_requests = 0
        if blocks is not None:
            num_rows, num_requests = blocks.num_rows, len(blocks.lengths)
            self._fill(blocks, host)
        if num_rows < self._num_rows:
            host["rows"][:, num_rows : self._num_rows] = self._padding
        if num_requests < self._num_requests:
            host["requests"][:, num_requests : self._num_requests] = 0
        self._num_rows, self._num_requests = num_rows, num_requests
        host["row_starts"][num_requests:] = num_rows
        self.inputs.send()
        if not self._is_recordable:
            self._group = None if blocks is None else self._group_of(blocks)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        group = self._group
        if group is None:
            return torch.zeros_like(query)
        keys, values = self._kv_pool.keys[layer], self._kv_pool.values[layer]
        slots = self.slots[group.rows]
        query = kv_write.write(query, key, value, heads, keys, values, slots)
        scale = query.shape[-1] ** -0.5
        out = paged_attention.attend(query[group.rows], keys, values, group.attention, scale)
        return self._padded(out)  # [num_tokens, num_heads, head_dim]

    def gated_delta(self, layer: int, inputs: Inputs, weights: Weights) -> Tensor:
        states, group = self._state_pool.layers[layer], self._group
        if group is None:
            return inputs.mixed_qkv.new_zeros((self.num_tokens, *states.state.shape[1::2]))
        out = gated_delta.verify_slots(inputs, weights, states, group.recurrence)
        return self._padded(out)  # [num_tokens, num_value_heads, value_head_dim]

    def _padded(self, out: Tensor) -> Tensor:
        num_missing = self.num_tokens - len(out)
        return torch.cat((out, out.new_zeros((num_missing, *out.shape[1:])))) if num_missing else out

    def _fill(self, packed: PackedRows, host: Mapping[str, npt.NDArray[np.integer[Any]]]) -> None:
        num_requests = len(packed.lengths)
        rows = host["rows"][:, : packed.num_rows]
        rows[0] = packed.tokens
        rows[1], rows[2:] = packed.places()  # features lie where K/V do
        requests = host["requests"][:, :num_requests]
        requests[:2] = packed.columns[1:]
        requests[2] = self._state_pool.num_pending[packed.columns[2]]
        host["row_starts"][1 : num_requests + 1] = np.add.accumulate(packed.columns[0])
        host["page_table"][:num_requests, : packed.num_pages] = packed.page_table

    def _group_of(self, packed: PackedRows) -> _Group:
        """Plans of these blocks alone."""
        num_pending = self._state_pool.num_pending[packed.columns[2]]
        own = slice(0, len(packed.lengths))
        group = SegmentGroup(packed, own, self.tokens.device, num_pending.tolist())
        return _Group(group.rows, group.recurrence, group.attention)


def _fields(bucket: GraphBucket, num_pages: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    num_aligned = bucket.num_requests + -bucket.num_requests % 4  # 16 bytes; see `Staging`
    return {
        "rows": (torch.int64, (4, bucket.num_tokens)),  # tokens, positions, slots, rows of features
        "requests": (torch.int32, (3, num_aligned)),  # first positions, state slots, numbers pending
        "row_starts": (torch.int32, (bucket.num_requests + 1,)),
        "page_table": (torch.int32, (bucket.num_requests, num_pages)),
    }


def _group_over(fields: Mapping[str, Tensor], bucket: GraphBucket) -> _Group:
    """Plans that kernels read anew at every launch."""
    rows = slice(0, bucket.num_tokens)
    starts = fields["row_starts"]
    first_positions, state_slots, num_pending = fields["requests"][:, : bucket.num_requests].unbind()
    return _Group(
        rows,
        BlockPlan(starts, state_slots, num_pending, rows, is_plain=not bucket.replays),
        RaggedPlan(fields["page_table"], starts, first_positions, bucket.max_width),
    )
