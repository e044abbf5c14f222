"""A target with its pools: one packed pass, and the features it leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.engine.batch import MIN_ROWS, PackedBatch, PackedRows, Segment
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.pace import Pace
from dspine_cluster.engine.padded_batch import PaddedBatch
from dspine_cluster.engine.page_table import IntArray, PageTable
from dspine_cluster.engine.pass_graphs import PassGraphs
from dspine_cluster.engine.pools import FeaturePool, KvPool, StatePool
from dspine_cluster.engine.ranks.followers import Followers
from dspine_cluster.models.target import TargetModel


class Engine:
    """Runs passes. Which pages and slots belong to whom is the caller's knowledge."""

    def __init__(
        self,
        target: TargetModel,
        *,
        num_pages: int,
        num_slots: int,
        projector: nn.Module | None = None,
        tapped_layers: Sequence[int] = (),
        feature_size: int = 0,
        graph_buckets: GraphBuckets | None = None,
        followers: Followers | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`projector` maps taps `[n, len(tapped_layers) * hidden_size]` to features `[n, feature_size]`; without one
        no features are kept. Passes over blocks alone are padded to `graph_buckets`, and on GPUs recorded. `followers`
        hold the rest of a target that is split over ranks, and have pools of the same sizes. `pace` says how
        long passes take at least."""
        weight = target.embedding_weight
        self.target = target
        self.followers = followers
        self._pace = pace
        self.num_pages = num_pages
        self._projector = projector
        self._tapped_layers = tuple(tapped_layers) if projector is not None else ()
        self.kv_pool = KvPool.create(target.config, num_pages, weight.dtype, weight.device)
        self.state_pool = StatePool(target.config, num_slots, weight.dtype, weight.device)
        self.feature_pool = FeaturePool.create(
            feature_size if projector is not None else 0, num_pages, weight.dtype, weight.device
        )
        self.graphs: PassGraphs | None = None
        if graph_buckets is not None:
            self.graphs = PassGraphs(self._run, graph_buckets, self.kv_pool, self.state_pool)

    @in_inference_mode
    def forward(self, packed: PackedRows, *, with_features: bool = True) -> Tensor:
        """Run blocks and prefill chunks in one pass.

        K/V and features of all tokens are stored; without `with_features` features may be left out. A chunk advances
        its recurrent state; a block advances it to its anchor and leaves the inputs of its proposals pending until
        `state_pool.set_pending`. Returns the final hidden states `[num_rows, hidden_size]`.

        Raises:
            FloatingPointError: they are not finite numbers, so that no token chosen from them would mean anything.
            EngineStoppedError, RuntimeError: a rank is lost.
        """
        if self._pace is None:
            return self._forward(packed, with_features)
        with self._pace.passing(packed):
            return self._forward(packed, with_features)

    def _forward(self, packed: PackedRows, with_features: bool) -> Tensor:
        if self.followers is not None:
            num_pending = self.state_pool.num_pending[packed.columns[2, : packed.num_blocks]]
            self.followers.run(packed, num_pending.tolist())
        hidden = self.graphs.forward(packed) if self.graphs is not None else None
        if hidden is None:
            batch = PackedBatch(packed, self.kv_pool, self.state_pool)
            hidden = self._run(batch, with_features)[: batch.num_tokens]
        else:
            with_features = True  # what is recorded includes them
        record = self.feature_pool.record
        if self._projector is not None and (record.has_gaps or not with_features):
            record.note(packed.places()[1], is_there=with_features)
        if not isfinite(hidden.sum().item()):
            raise FloatingPointError(
                "the target gave numbers that are not finite: check its weights and the memory"
            )
        return hidden

    def _run(self, batch: PackedBatch | PaddedBatch, with_features: bool = True) -> Tensor:
        """Layers and features; waits for nothing on the device, so that it can be recorded."""
        tapped_layers = self._tapped_layers if with_features else ()
        output = self.target(batch.tokens, batch.positions, batch, tapped_layers)
        if self._projector is not None and with_features:
            features = self._projector(output.taps)  # [num_rows, feature_size]
            self.feature_pool.storage.index_copy_(0, batch.feature_rows, features[: batch.num_tokens])
        hidden: Tensor = output.hidden
        return hidden

    @in_inference_mode
    def logits(self, hidden: Tensor) -> Tensor:
        """Raw logits `[rows, vocab_size]` float32 of final hidden states, padded so that few rows give the same."""
        num_rows = len(hidden)
        if num_rows < MIN_ROWS:
            hidden = F.pad(hidden, (0, 0, 0, MIN_ROWS - num_rows))
        return self.target.logits(hidden)[:num_rows]

    def warm_up(self) -> None:
        """One prefill and one round, and what can be recorded, so that the first request pays for no initialisation."""
        slot = self.state_pool.allocate()
        self.logits(self.forward(PackedRows.of(chunks=[Segment([0] * 16, 0, [0], slot)]))[-1:])
        self.logits(self.forward(PackedRows.of([Segment([0] * 16, 16, [0, 1], slot)])))
        self.state_pool.release(slot)
        if self.graphs is not None:
            if self.followers is not None:
                self.followers.warm_up()
            self.graphs.warm_up()

    def check(self) -> None:
        """Raises EngineStoppedError when a rank of the target is lost."""
        if self.followers is not None:
            self.followers.check()

    def close(self) -> None:
        """End the other ranks; no pass can be run any more then. Harmless without any."""
        if self.followers is not None:
            self.followers.close()

    @property
    def token_sizes(self) -> tuple[int, ...]:
        """The sizes to which the tokens of a pass over blocks are padded, ascending; larger ones are not padded."""
        return self.graphs.token_sizes if self.graphs is not None else ()

    @property
    def feature_row_bytes(self) -> int:
        """Bytes of one token's features."""
        rows = self.feature_pool.rows
        return rows.shape[1] * rows.itemsize

    def features_start(self, pages: npt.NDArray[np.int32], end: int) -> int:
        """The first position from which on features of all positions before `end` were computed, of a request that has
        `pages`."""
        return self.feature_pool.record.start_before(pages, end)

    def read_features(
        self,
        page_table: PageTable,
        numbers: IntArray,
        starts: IntArray,
        lengths: IntArray,
    ) -> npt.NDArray[np.uint8]:
        """Raw feature rows of the positions start .. start + length - 1 of each run, one run after the other: uint8
        `[num_rows, row_bytes]`. Run i is of the request that has row `numbers[i]` of the table."""
        _, slots = page_table.places(numbers, starts, lengths)
        return self.feature_pool.read(slots)
