"""What a drafter has proposed: checked, as what a drafter says must never bring the verifier down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from msgspec import Struct

from dspine_cluster.core.survival import CONFIDENCE_EDGES, NUM_BINS
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.messages import Float32Array, Int32Array, Int64Array, Proposals

_LEAST_MASS, _MOST_MASS = 1.0 - 1e-3, 1.0 + 1e-3
"""How far a float32 distribution may be from a sum of 1."""
_EDGES = np.array(CONFIDENCE_EDGES)


class _Drawn(Struct, eq=False):
    """What the sampled blocks of one message were drawn from."""

    candidates: Int32Array  # [num_blocks, num_proposals, K]
    probs: Float32Array  # [num_blocks, num_proposals, K]


class DraftedBlock(Struct, eq=False):
    """Proposals for one request's present anchor."""

    tokens: list[int]
    cells: list[int]
    """Where each position belongs by the drafter's confidence there; see `core.survival.cells_of`."""
    drawn: _Drawn | None = None
    """None where the request needs no distributions: it does not sample, or with a seed."""
    row: int = 0
    """Which block of `drawn`."""

    @property
    def candidates(self) -> Int32Array | None:
        """int32 [num_proposals, K], if distributions are needed; `probs`, float32, alike."""
        return None if self.drawn is None else self.drawn.candidates[self.row]

    @property
    def probs(self) -> Float32Array | None:
        return None if self.drawn is None else self.drawn.probs[self.row]


def read_blocks(
    message: Proposals, rows: Sequence[int], sampled: Sequence[int], vocab_size: int
) -> list[DraftedBlock]:
    """Some rows of `message`; of these, `sampled` need the distributions, by their index among `rows`.

    Raises:
        ChannelError: one of the rows cannot be used.
    """
    _check_ids(message.tokens, vocab_size)
    tokens, cells = message.tokens.tolist(), read_cells(message.confidence)
    if len(rows) < len(tokens):
        tokens, cells = [tokens[row] for row in rows], [cells[row] for row in rows]
    blocks = list(map(DraftedBlock, tokens, cells))
    if sampled:
        drawn = _distributions(message, [rows[index] for index in sampled], vocab_size)
        for row, index in enumerate(sampled):
            block = blocks[index]
            block.drawn, block.row = drawn, row
    return blocks


def read_cells(confidences: Float32Array) -> list[list[int]]:
    """As `core.survival.cells_of`, for each row of [num_rows, num_proposals]."""
    cells = _EDGES.searchsorted(confidences, "right")
    cells += _first_cells(confidences.shape[1])
    as_lists: list[list[int]] = cells.tolist()
    return as_lists


@cache
def _first_cells(num_proposals: int) -> Int64Array:
    return NUM_BINS * np.arange(num_proposals)


@cache
def _ones(length: int) -> Float32Array:
    return np.ones(length, np.float32)


def _check_ids(ids: Int32Array, vocab_size: int) -> None:
    # As unsigned numbers, negative ones are too large as well.
    if ids.size and int(ids.view(np.uint32).max()) >= vocab_size:
        raise ChannelError(f"proposals hold token ids outside the vocabulary of {vocab_size}")


def _distributions(message: Proposals, rows: Sequence[int], vocab_size: int) -> _Drawn:
    """What speculative sampling divides by must be a distribution that can have given the proposals."""
    told = message.is_sampled.nonzero()[0]
    tokens, candidates, probs = message.tokens.take(told, 0), message.candidates, message.probs
    if told.tolist() != rows:
        places = told.searchsorted(rows)
        if not np.array_equal(told.take(places, mode="clip") if len(told) else told, rows):
            raise ChannelError("proposals for a sampled request came without their distribution")
        tokens = tokens.take(places, 0)
        candidates, probs = candidates.take(places, 0), probs.take(places, 0)
    _check_ids(candidates, vocab_size)
    shape = (tokens.size, probs.shape[-1])
    ones = _ones(shape[1])  # products with it sum up much faster than short sums do
    drawn = (probs * (candidates == tokens[..., None])).reshape(shape) @ ones  # [num_rows * num_proposals]
    mass = probs.reshape(shape) @ ones
    if mass.size and not (drawn.min() > 0.0 and mass.min() > _LEAST_MASS and mass.max() < _MOST_MASS):
        raise ChannelError(
            "proposals for a sampled request were not drawn from the distribution they came with"
        )
    return _Drawn(candidates, probs)
