"""The blocks of a pass in buffers that stay in place, padded to a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from dspine_cluster.core.graph_buckets import GraphBucket
from dspine_cluster.core.page_pool import num_pages_for, slot_of
from dspine_cluster.engine.batch import Segment, SegmentGroup
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
        self._pages: list[list[int]] = [[] for _ in range(bucket.num_requests)]  # as the page table has them
        self._num_slots = kv_pool.keys.shape[1] * kv_pool.keys.shape[2]
        fields = self.inputs.device
        self.tokens = fields["tokens"]  # int64 [num_tokens]; `positions` alike
        self.positions = fields["positions"]
        self.feature_rows = fields["feature_rows"]  # int64 [num_tokens]; padding: the row after the last
        self._is_recordable = uses_triton(kv_pool.keys)
        self._group: _Group | None = None
        if self._is_recordable:
            self._group = _group_over(fields, bucket)

    def fill(self, blocks: Sequence[Segment]) -> None:
        """Take the blocks of the next pass."""
        lengths = [len(block.tokens) for block in blocks]
        num_pending = [self._state_pool.num_pending[block.state_slot] for block in blocks]
        self._fill_rows(blocks, sum(lengths))
        self._fill_requests(blocks, lengths, num_pending)
        self.inputs.send()
        if not self._is_recordable:
            self._group = _group_of(blocks, num_pending, self.tokens.device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, heads: HeadTransform) -> Tensor:
        group = self._group
        if group is None:
            return torch.zeros_like(query)
        keys, values = self._kv_pool.keys[layer], self._kv_pool.values[layer]
        slots = self.inputs.device["slots"][group.rows]
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

    def _fill_rows(self, blocks: Sequence[Segment], num_rows: int) -> None:
        host = self.inputs.host
        slots = [slot_of(block.pages, p) for block in blocks for p in block.positions]
        for name, own, padding in (
            ("tokens", [token for block in blocks for token in block.tokens], 0),
            ("positions", [p for block in blocks for p in block.positions], 0),
            ("slots", slots, _NOWHERE),
            ("feature_rows", slots, self._num_slots),
        ):
            host[name][:num_rows] = own
            host[name][num_rows:] = padding

    def _fill_requests(
        self, blocks: Sequence[Segment], lengths: Sequence[int], num_pending: Sequence[int]
    ) -> None:
        host, num_requests = self.inputs.host, len(blocks)
        for name, own in (
            ("first_positions", [block.start for block in blocks]),
            ("state_slots", [block.state_slot for block in blocks]),
            ("num_pending", num_pending),
        ):
            host[name][:num_requests] = own
            host[name][num_requests:] = 0
        host["row_starts"][: num_requests + 1] = [*accumulate(lengths, initial=0)]
        host["row_starts"][num_requests:] = sum(lengths)
        for number, (block, length) in enumerate(zip(blocks, lengths, strict=True)):
            pages = list(block.pages[: num_pages_for(block.start + length)])
            if pages != self._pages[number]:  # comparing is much cheaper than writing
                self._pages[number] = pages
                host["page_table"][number, : len(pages)] = pages


def _fields(bucket: GraphBucket, num_pages: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    row = (torch.int64, (bucket.num_tokens,))
    request = (torch.int32, (bucket.num_requests,))
    return {
        **dict.fromkeys(("tokens", "positions", "slots", "feature_rows"), row),
        **dict.fromkeys(("first_positions", "state_slots", "num_pending"), request),
        "row_starts": (torch.int32, (bucket.num_requests + 1,)),
        "page_table": (torch.int32, (bucket.num_requests, num_pages)),
    }


def _group_over(fields: dict[str, Tensor], bucket: GraphBucket) -> _Group:
    """Plans that kernels read anew at every launch."""
    rows = slice(0, bucket.num_tokens)
    starts = fields["row_starts"]
    return _Group(
        rows,
        BlockPlan(starts, fields["state_slots"], fields["num_pending"], rows, is_plain=not bucket.replays),
        RaggedPlan(fields["page_table"], starts, fields["first_positions"], bucket.max_width),
    )


def _group_of(blocks: Sequence[Segment], num_pending: Sequence[int], device: torch.device) -> _Group | None:
    """Plans of these blocks alone."""
    if not blocks:
        return None
    group = SegmentGroup(blocks, 0, device, num_pending)
    return _Group(group.rows, group.recurrence, group.attention)
