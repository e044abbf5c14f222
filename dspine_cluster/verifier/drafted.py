"""What a drafter has proposed: checked, as what a drafter says must never bring the verifier down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dspine_cluster.core.survival import NUM_BINS
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.columns import Int8Array, are_ids
from dspine_cluster.transport.messages import Float32Array, Int32Array, Int64Array, Proposals

_LEAST_MASS, _MOST_MASS = 1.0 - 1e-3, 1.0 + 1e-3
"""How far a float32 distribution may be from a sum of 1."""
_NUM_SIZES = 8
"""How many sizes of messages, which drafters choose, arrays are kept for."""

_Number = TypeVar("_Number", bound=np.generic)


class Drafts(Struct, eq=False):
    """What one message proposed."""

    tokens: Int32Array  # [num_blocks, num_proposals]
    candidates: Int32Array | None = None  # [num_sampled, num_proposals, K]
    probs: Float32Array | None = None  # [num_sampled, num_proposals, K]


class DraftedBlock(Struct, eq=False):
    """Proposals for one request's present anchor."""

    drafts: Drafts
    row: int
    """Which of the blocks of `drafts`."""
    cells: list[int]
    """Where each of its proposals belongs by the drafter's confidence there; see `core.survival.cells_of`."""
    sampled_row: int | None = None
    """Which of the sampled blocks of `drafts`; None where the request needs no distributions: it does not sample, or
    with a seed."""

    @property
    def candidates(self) -> Int32Array | None:
        """int32 [num_proposals, K], if distributions are needed; `probs`, float32, alike."""
        return self._own(self.drafts.candidates)

    @property
    def probs(self) -> Float32Array | None:
        return self._own(self.drafts.probs)

    def _own(self, of_sampled: npt.NDArray[_Number] | None) -> npt.NDArray[_Number] | None:
        return None if of_sampled is None or self.sampled_row is None else of_sampled[self.sampled_row]


def read_blocks(
    message: Proposals, rows: Sequence[int], sampled: Sequence[int], vocab_size: int
) -> list[DraftedBlock]:
    """Some rows of `message`; of these, `sampled` need the distributions, by their index among `rows`.

    Raises:
        ChannelError: one of the rows cannot be used.
    """
    _check_ids(message.tokens, vocab_size)
    cells, drafts = read_cells(message.bins), Drafts(message.tokens)
    if len(rows) < len(cells):
        cells = [cells[row] for row in rows]
    blocks = list(map(DraftedBlock, repeat(drafts), rows, cells))
    if sampled:
        told = _check_distributions(message, vocab_size)
        drafts.candidates, drafts.probs = message.candidates, message.probs
        for index in sampled:
            blocks[index].sampled_row = told.get(rows[index])
            if blocks[index].sampled_row is None:
                raise ChannelError("proposals for a sampled request came without their distribution")
    return blocks


def lay_out(
    anchors: Sequence[int], drafted: Sequence[DraftedBlock | None], lengths: Sequence[int]
) -> Int64Array:
    """The anchor of each request and its first proposals, as many as `lengths` says, end to end: int64
    `[len(anchors) + sum(lengths)]`."""
    most = max(lengths, default=0)
    if not most:
        return np.array(anchors, np.int64)
    tokens = np.empty((len(anchors), 1 + most), np.int64)
    tokens[:, 0] = anchors
    for drafts in dict.fromkeys([block.drafts for block in drafted if block is not None]):
        rows = [block.row for block in drafted if block is not None and block.drafts is drafts]
        numbers: slice | list[int] = slice(None)
        if len(rows) < len(drafted):
            numbers = [i for i, block in enumerate(drafted) if block is not None and block.drafts is drafts]
        proposals = drafts.tokens.take(rows, 0)[:, :most]
        tokens[numbers, 1 : 1 + proposals.shape[1]] = proposals
    return tokens[np.arange(1 + most) <= np.array(lengths)[:, None]]


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


def _check_distributions(message: Proposals, vocab_size: int) -> dict[int, int]:
    """What speculative sampling divides by must be distributions that can have given the proposals. Returns the place
    among them of each row that they are told of."""
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
    return {row: place for place, row in enumerate(told.tolist())}
