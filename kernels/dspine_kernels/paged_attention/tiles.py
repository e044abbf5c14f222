"""Tile sizes and key shares of the attention kernels, from shapes alone, so that a captured launch stays valid."""

from __future__ import annotations

from typing import NamedTuple

MAX_TILE_ROWS = 128
MAX_SPLITS = 64
MAX_SPILL_BYTES = 320
"""On sm_80, where the products' operands come from registers; sm_90 spills nothing."""
_TARGET_PROGRAMS = 256
"""Enough to fill the largest devices about twice."""
_MIN_SPLIT_KEYS = 128
"""A smaller share costs more in adding up than it gains."""


class Tile(NamedTuple):
    """Sizes of one program's work."""

    rows: int  # folded query rows, a power of two of at least 16
    keys: int  # keys in flight
    num_warps: int
    num_stages: int


def tile_for(num_rows: int, head_dim: int) -> Tile:
    """For requests of at most `num_rows` folded rows (query tokens times heads that share a key head)."""
    assert head_dim in (16, 32, 64, 128, 256), "head_dim must be a power of two from 16 to 256"
    rows = min(MAX_TILE_ROWS, max(16, 1 << (num_rows - 1).bit_length()))
    keys = 32 if head_dim > 128 else 64
    is_large = rows * head_dim > 64 * 128
    # Page numbers are loaded ahead of keys: 3 stages hold two tiles of keys, 5 hold three. A large tile runs alone on
    # its multiprocessor, so more of its keys must be under way.
    return Tile(rows, keys, num_warps=8 if is_large else 4, num_stages=5 if is_large else 3)


def splits_for(num_programs: int, max_keys: int) -> int:
    """Shares of each request's keys, where `num_programs` programs would attend to all of up to `max_keys` keys."""
    by_occupancy = -(-_TARGET_PROGRAMS // num_programs)
    by_length = -(-max_keys // _MIN_SPLIT_KEYS)
    return max(1, min(MAX_SPLITS, by_occupancy, by_length))
