"""How many proposals of each block the target checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import NamedTuple, Protocol

from dspine_cluster.core.capacity_estimate import CapacityEstimate


@dataclass(slots=True)
class Blocks:
    """The parts that requests have in a pass, as the decision sees them: in columns, a row for each request."""

    uids: Sequence[int]
    num_proposals: Sequence[int]
    """Proposals at hand, already bounded by what the request can still use; 0 for one that decodes plainly."""
    cells: Sequence[Sequence[int]]
    """Of each of its proposals, perhaps of more: the position and how confident the drafter is there, which is the
    largest of its untempered probabilities, a function of the proposals before; see `core.survival.cells_of` and
    `core.verify_walk`."""
    is_greedy: Sequence[bool]

    def __len__(self) -> int:
        return len(self.uids)


class PassLoad(NamedTuple):
    """What a pass holds beside the blocks it decodes."""

    num_prefill_tokens: int = 0
    num_kv_tokens: int = 0
    """Cached tokens that its requests attend to, together."""
    max_verified_tokens: int = maxsize
    """Proposals that fit into the pass. Whoever lowers verify lengths after they were chosen biases sampled output."""


NO_LOAD = PassLoad()


@dataclass(slots=True)
class Outcomes:
    """What a pass gave the requests that it decoded: in columns, a row for each."""

    uids: Sequence[int]
    num_verified: Sequence[int]
    num_accepted: Sequence[int]
    """As the target decided, before the request's end cut anything off."""

    def __len__(self) -> int:
        return len(self.uids)


class VerifyLengthPolicy(Protocol):
    """Decides verify lengths for the blocks of one round, and what is drafted for at all.

    A policy that learns is told what came of it; the others inherit that they need nothing.
    """

    @property
    def wants_drafts(self) -> bool:
        """Whether drafts are worth asking for at all."""

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        """A verify length per block, from 0 to its `num_proposals`."""

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        """Those of the requests whose round has ended that are drafted for next; the others wait for nothing."""
        return uids if self.wants_drafts else ()

    def note_joining(self, num_requests: int) -> None:
        """So many more will soon be among those that `choose_drafts` is asked for: their prompts are computed, or wait
        and have room."""
        return

    @property
    def drafts_newcomers(self) -> bool:
        """Whether a new request is drafted for at first, so that its drafter should see its prompt early."""
        return self.wants_drafts

    @property
    def wants_features(self) -> bool:
        """Whether the next pass is to compute features for drafters."""
        return self.wants_drafts

    @property
    def has_halves(self) -> bool:
        """Whether two halves of the requests take turns."""
        return False

    def prefill_room(self, most: int, num_blocks: int, waited_s: float) -> int:
        """How many prompt tokens, up to `most`, fill the gap until `num_blocks` drafts come that were asked for
        `waited_s` ago; 0 where they had better go with the round that waits for these."""
        return most

    def note_drafts(self, num_blocks: int, taken_s: float) -> None:
        """The drafts of `num_blocks` requests came `taken_s` after they were asked for together."""
        return

    def note_elapsed(self, elapsed_s: float) -> None:
        """The pass that is noted next ended `elapsed_s` after the one before it, with something to do all the time."""
        return

    def note_pass(self, outcomes: Outcomes, load: PassLoad, taken_s: float) -> None:
        """A pass has ended; `load` is what it held in truth."""
        return

    def forget(self, uid: int) -> None:
        """A request has ended."""
        return

    def estimate(self, sizes: Sequence[int]) -> CapacityEstimate | None:
        """What batches of so many requests like the present ones would give; None where costs are not learnt."""
        return None

    def figures(self) -> Mapping[str, float]:
        """What it decided and why, by name; counters end in `_total`. May be asked from another thread."""
        return {}


@dataclass(frozen=True, slots=True)
class FixedVerifyLength(VerifyLengthPolicy):
    """Checks up to `length` proposals of every block; 0 decodes plainly."""

    length: int

    @property
    def wants_drafts(self) -> bool:
        return self.length > 0

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        """Where the pass has less room the longest blocks are shortened evenly."""
        counts = blocks.num_proposals
        cap = min(self.length, max(counts, default=0))
        while cap > 0 and sum([min(cap, count) for count in counts]) > load.max_verified_tokens:
            cap -= 1
        return [min(cap, count) for count in counts]
