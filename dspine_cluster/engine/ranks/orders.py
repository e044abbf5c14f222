"""What a following rank is told once, before the first step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dspine_cluster.core.graph_buckets import GraphBuckets


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Which part of which target a rank loads, and where the ranks meet."""

    folder: str
    dtype: str
    device: str
    rank: int
    num_ranks: int
    meeting_folder: str

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """The sizes of an engine's pools, and for which blocks its passes are padded."""

    num_pages: int
    num_slots: int
    graph_block_size: int = 0
    """0 pads none."""

    @property
    def graph_buckets(self) -> GraphBuckets | None:
        return GraphBuckets(self.num_slots, self.graph_block_size) if self.graph_block_size else None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()
