"""Passes over blocks padded to a few sizes, so that a recorded one serves all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dspine_cluster.core.graph_buckets import GraphBucket, GraphBuckets, table_pages
from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.graphs import GraphCache
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.padded_batch import PaddedBatch
from dspine_cluster.engine.pools import KvPool, StatePool


class _Size(NamedTuple):
    bucket: GraphBucket
    num_pages: int


class PassGraphs:
    """Runs passes without prompt chunks over buffers that stay in place. For one thread."""

    def __init__(
        self,
        run: Callable[[PaddedBatch], Tensor],
        buckets: GraphBuckets,
        kv_pool: KvPool,
        state_pool: StatePool,
    ) -> None:
        """`run` does a pass and gives its final hidden states, a row a padded token; it waits for nothing."""
        self._run = run
        self._buckets = buckets
        self._kv_pool, self._state_pool = kv_pool, state_pool
        self._batches: dict[_Size, PaddedBatch] = {}
        self._graphs: GraphCache[_Size, Tensor] = GraphCache(kv_pool.keys.device)

    @property
    def token_sizes(self) -> tuple[int, ...]:
        """To what the tokens of a pass are padded."""
        return self._buckets.token_sizes

    def forward(self, blocks: PackedRows) -> Tensor | None:
        """Final hidden states `[num_rows, hidden_size]`, good until the next pass; None where no bucket fits, and with
        prompt chunks.

        The caller must have waited for the device since the pass before.
        """
        size = self._size(blocks)
        return None if size is None else self._forward(size, blocks)[: blocks.num_rows]

    def is_recorded(self, blocks: PackedRows) -> bool:
        size = self._size(blocks)
        return size is not None and self._graphs.is_recorded(size)

    @in_inference_mode
    def warm_up(self) -> None:
        """Record plain decoding and whole blocks over short contexts. Pools stay as they are."""
        for bucket in self._buckets.common():
            self._forward(_Size(bucket, table_pages(0)), None)

    def _forward(self, size: _Size, blocks: PackedRows | None) -> Tensor:
        batch = self._batches.get(size)
        if batch is None:
            batch = PaddedBatch(size.bucket, size.num_pages, self._kv_pool, self._state_pool)
            self._batches[size] = batch
        batch.fill(blocks)
        return self._graphs.run(size, lambda: self._run(batch))

    def _size(self, blocks: PackedRows) -> _Size | None:
        if blocks.num_blocks < len(blocks.lengths):
            return None
        replays = blocks.num_rows > len(blocks.lengths)  # as buckets of blocks with proposals do in any case
        replays = replays or bool(self._state_pool.num_pending[blocks.columns[2]].any())
        bucket = self._buckets.bucket_of(blocks.lengths, replays=replays)
        return None if bucket is None else _Size(bucket, table_pages(blocks.num_pages))
