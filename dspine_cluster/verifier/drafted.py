"""What a drafter has proposed: checked, as what a drafter says must never bring the verifier down."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import count, repeat

import numpy as np
from msgspec import Struct

from dspine_cluster.core.survival import NUM_BINS
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.columns import Int8Array, are_ids
from dspine_cluster.transport.messages import Float32Array, Int32Array, Int64Array, Proposals

_LEAST_MASS, _MOST_MASS = 1.0 - 1e-3, 1.0 + 1e-3
"""How far a float32 distribution may be from a sum of 1."""
_NUM_SIZES = 8
"""How many sizes of messages, which drafters choose, arrays are kept for."""


class DraftedBlock(Struct, eq=False):
    """Proposals for one request's present anchor."""

    tokens: array[int]
    """Those of all blocks of its message, end to end: no number is made of one that is not verified."""
    start: int
    """Where its own begin among them."""
    cells: list[int]
    """Where each of its proposals belongs by the drafter's confidence there; see `core.survival.cells_of`."""
    told: Proposals | None = None
    """The message that tells of its distributions; None where there are none, as the request does not sample or with a
    seed, or where nobody needs those of the message."""
    place: int = 0
    """Which of the sampled blocks of `told`."""

    @property
    def candidates(self) -> Int32Array | None:
        """int32 [num_proposals, K], if distributions are needed; `probs`, float32, alike."""
        return None if self.told is None else self.told.candidates[self.place]

    @property
    def probs(self) -> Float32Array | None:
        return None if self.told is None else self.told.probs[self.place]


def read_blocks(message: Proposals, sampled: Sequence[int], vocab_size: int) -> list[DraftedBlock]:
    """The rows of `message`; of these, `sampled` need the distributions.

    Raises:
        ChannelError: one of the rows cannot be used.
    """
    _check_ids(message.tokens, vocab_size)
    tokens, num_proposals = array("i", message.tokens.tobytes()), message.tokens.shape[1]
    blocks = list(map(DraftedBlock, repeat(tokens), count(0, num_proposals), read_cells(message.bins)))
    if sampled:
        told = _check_distributions(message, vocab_size)
        if not set(told).issuperset(sampled):
            raise ChannelError("proposals for a sampled request came without their distribution")
        for place, row in enumerate(told):
            block = blocks[row]
            block.told, block.place = message, place
    return blocks


def lay_out(
    anchors: Sequence[int], drafted: Sequence[DraftedBlock | None], lengths: Sequence[int]
) -> list[int]:
    """The anchor of each request and its first proposals, as many as `lengths` says, end to end."""
    tokens: list[int] = []
    for anchor, block, length in zip(anchors, drafted, lengths, strict=True):
        tokens.append(anchor)
        if block is not None:
            tokens += block.tokens[block.start : block.start + length]
    return tokens


def read_cells(bins: Int8Array) -> list[list[int]]:
    """As `core.survival.cells_of`, for each row of [num_rows, num_proposals]."""
    cells: list[list[int]] = (bins + _first_cells(bins.shape[1])).tolist()
    return cells


@lru_cache(_NUM_SIZES)
def _first_cells(num_proposals: int) -> Int64Array:
    return NUM_BINS * np.arange(num_proposals)


@lru_cache(_NUM_SIZES)
def _ones(length: int) -> Float32Array:
    return np.ones(length, np.float32)


def _check_ids(ids: Int32Array, vocab_size: int) -> None:
    if not are_ids(ids, vocab_size):
        raise ChannelError(f"proposals hold token ids outside the vocabulary of {vocab_size}")


def _check_distributions(message: Proposals, vocab_size: int) -> list[int]:
    """What speculative sampling divides by must be distributions that can have given the proposals. Returns the rows
    that they are told of."""
    told = message.is_sampled.nonzero()[0]
    tokens, candidates, probs = message.tokens.take(told, 0), message.candidates, message.probs
    _check_ids(candidates, vocab_size)
    width = probs.shape[2]
    mass = probs.reshape(tokens.size, width) @ _ones(width)  # sums up much faster than short sums do
    if tokens.size and not (
        width
        and np.count_nonzero(candidates[..., 0] != tokens) == 0
        and probs[..., 0].min() > 0.0
        and mass.min() > _LEAST_MASS
        and mass.max() < _MOST_MASS
    ):
        raise ChannelError(
            "proposals for a sampled request were not drawn from the distribution they came with"
        )
    rows: list[int] = told.tolist()
    return rows
