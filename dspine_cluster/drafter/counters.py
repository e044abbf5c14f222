"""Totals of a drafter loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DraftCounters:
    """What a loop has done; totals only grow."""

    num_batches: int = 0
    num_blocks: int = 0
    num_features: int = 0
    num_cached_tokens: int = 0
    """Positions that requests found in the cache when they opened."""
    num_needs: int = 0
    num_busy: int = 0
    draft_s: float = 0.0
    ingest_s: float = 0.0
