"""How a request starts from a cached prefix: what it skips, where its prefill is split, where states are saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.core.prefix_index import NO_MATCH, Match
from dspine_cluster.types import CHUNK_GRID_TOKENS

CHECKPOINT_STRIDE_TOKENS = 4096
"""Long prompts leave a checkpoint each time they have grown by this."""
NUM_BOUNDARY_CHECKPOINTS = 2
"""Chat templates rewrite the end of a prompt on the next turn, so that only what lies before the last message
boundaries is sure to come back."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A start at `match.num_tokens`."""

    match: Match = NO_MATCH
    checkpoints: tuple[int, ...] = ()
    """Lengths, ascending, at which to save the recurrent state."""
    splits: tuple[int, ...] = ()
    """Lengths, ascending, at which a prefill chunk must end."""

    def next_split(self, num_computed: int, num_tokens: int) -> int:
        """The first split behind `num_computed`; `num_tokens` if there is none."""
        return next((split for split in self.splits if split > num_computed), num_tokens)


COLD_START = Resume()


def plan_resume(
    match: Match, num_tokens: int, num_prompt: int, message_boundaries: Sequence[int], *, has_states: bool
) -> Resume:
    """The start of a request with `num_tokens` committed tokens, the first `num_prompt` of them its prompt.

    States are saved at the last grid points at or before the last two message boundaries, or the prompt's end if it has
    none, where these tokens part from cached ones, and at each stride. Everything computed from a grid point on is
    computed in the pieces of a cold start; a start between two grid points goes to the next one first.
    """
    if not has_states:
        return Resume(match)
    boundaries = sorted(message_boundaries)[-NUM_BOUNDARY_CHECKPOINTS:] or [num_prompt - 1]
    strides = range(CHECKPOINT_STRIDE_TOKENS, num_tokens, CHECKPOINT_STRIDE_TOKENS)
    wanted = {_grid_point(length) for length in [*boundaries, match.num_known_tokens, *strides]}
    checkpoints = sorted(length for length in wanted if match.num_tokens < length < num_tokens)
    splits = set(checkpoints)
    if match.num_tokens % CHUNK_GRID_TOKENS:
        splits.add(_grid_point(match.num_tokens) + CHUNK_GRID_TOKENS)
    return Resume(match, tuple(checkpoints), tuple(sorted(splits)))


def _grid_point(length: int) -> int:
    """The last grid point at or before `length`."""
    return length - length % CHUNK_GRID_TOKENS
