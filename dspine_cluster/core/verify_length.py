"""How many proposals of each block the target checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BlockView:
    """One request's drafted block, as the decision sees it."""

    uid: int
    num_proposals: int
    """Proposals at hand, already bounded by what the request can still use."""
    confidences: Sequence[float]
    """The drafter's probability of each proposal given the ones before it."""


class VerifyLengthPolicy(Protocol):
    """Decides verify lengths for the blocks of one round."""

    @property
    def wants_drafts(self) -> bool:
        """Whether drafts are worth asking for at all."""

    def choose(self, blocks: Sequence[BlockView]) -> list[int]:
        """A verify length per block, from 0 to its `num_proposals`."""


@dataclass(frozen=True, slots=True)
class FixedVerifyLength:
    """Checks up to `length` proposals of every block; 0 decodes plainly."""

    length: int

    @property
    def wants_drafts(self) -> bool:
        return self.length > 0

    def choose(self, blocks: Sequence[BlockView]) -> list[int]:
        return [min(self.length, block.num_proposals) for block in blocks]
