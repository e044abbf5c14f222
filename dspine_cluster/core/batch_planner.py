"""What one pass through the target holds: which blocks, which prompt chunks, and who must make room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.core.session import Phase, Session

CHUNK_GRID_TOKENS = 64
"""Prefill chunks end at multiples of this or at the end of the prompt, whatever the load, so that the same prompt is
always computed in the same pieces."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a pass may use."""

    free_pages: int
    free_slots: int
    max_batch_tokens: int
    prefill_chunk_tokens: int


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Decode one request: its anchor and the first `verify_length` proposals."""

    session: Session
    verify_length: int
    num_new_pages: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Prefill one request's next `num_tokens` committed tokens."""

    session: Session
    num_tokens: int
    num_new_pages: int
    """Pages for all its uncomputed tokens, given when it is admitted, so that prefill never stalls on memory."""

    @property
    def tokens(self) -> list[int]:
        """The chunk's tokens. Asked before it is run."""
        start = self.session.num_computed
        return self.session.tokens[start : start + self.num_tokens]

    @property
    def completes_prefill(self) -> bool:
        """Whether the chunk passes the session's last committed token through the target. Asked before it is run."""
        return self.session.num_computed + self.num_tokens == len(self.session.tokens)


@dataclass(slots=True)
class BatchPlan:
    """One pass. Preempted sessions release their pages before new ones are taken."""

    blocks: list[BlockPlan] = field(default_factory=list)
    chunks: list[ChunkPlan] = field(default_factory=list)
    preempted: list[Session] = field(default_factory=list)

    @property
    def items(self) -> list[BlockPlan | ChunkPlan]:
        """Everything that runs in this pass, in the order of its rows."""
        return [*self.blocks, *self.chunks]

    @property
    def is_empty(self) -> bool:
        return not self.items


def plan_batch(
    decoding: Sequence[tuple[Session, int]],
    running: Sequence[Session],
    waiting: Sequence[Session],
    budget: Budget,
) -> BatchPlan:
    """Plan one pass.

    Args:
        decoding: sessions whose round may run now, each with the verify length wanted for it. A subset of `running`.
        running: every session that holds pages, in order of admission.
        waiting: sessions without pages, in the order in which they are to be admitted.
        budget: memory and size limits.

    Under memory pressure verify lengths fall to 0 first; then the youngest session of lowest priority is preempted,
    until the anchors of the others fit. A waiting session is admitted only when all its tokens fit and one page is left
    for every running session, so that admission does not cause the next preemption.
    """
    plan = BatchPlan()
    _plan_blocks(plan, decoding, running, budget)
    free_pages = budget.free_pages - sum(block.num_new_pages for block in plan.blocks)
    room = budget.max_batch_tokens - sum(1 + block.verify_length for block in plan.blocks)
    num_kept = 0
    for session in running:
        if session in plan.preempted:
            continue
        num_kept += 1
        if session.phase is Phase.PREFILL:
            room -= _plan_chunk(plan, session, room, budget, num_new_pages=0)
    if plan.preempted:
        return plan
    free_slots = budget.free_slots
    for session in waiting:
        num_pages = num_pages_for(len(session.tokens) + 1)
        if free_slots == 0 or num_pages + num_kept > free_pages:
            break
        num_tokens = _plan_chunk(plan, session, room, budget, num_new_pages=num_pages)
        if num_tokens == 0:
            break
        room -= num_tokens
        free_pages -= num_pages
        free_slots -= 1
        num_kept += 1
    return plan


def _plan_blocks(
    plan: BatchPlan, decoding: Sequence[tuple[Session, int]], running: Sequence[Session], budget: Budget
) -> None:
    blocks = _fit_tokens(decoding, budget.max_batch_tokens - CHUNK_GRID_TOKENS)
    free_pages = budget.free_pages
    if _pages_missing(blocks) > free_pages:
        blocks = [(session, 0) for session, _ in blocks]
    victims = sorted(running, key=lambda session: (session.request.priority, session.arrival))
    while _pages_missing(blocks) > free_pages:
        victim = victims.pop()
        plan.preempted.append(victim)
        free_pages += len(victim.pages)
        blocks = [(session, length) for session, length in blocks if session is not victim]
    plan.blocks = [
        BlockPlan(session, length, _pages_missing([(session, length)])) for session, length in blocks
    ]


def _fit_tokens(decoding: Sequence[tuple[Session, int]], max_tokens: int) -> list[tuple[Session, int]]:
    """Lower the largest verify lengths evenly until all blocks fit `max_tokens` together."""
    cap = max((length for _, length in decoding), default=0)
    while cap > 0 and sum(1 + min(length, cap) for _, length in decoding) > max_tokens:
        cap -= 1
    return [(session, min(length, cap)) for session, length in decoding]


def _pages_missing(blocks: Sequence[tuple[Session, int]]) -> int:
    return sum(
        max(0, num_pages_for(len(session.tokens) + length) - len(session.pages)) for session, length in blocks
    )


def _plan_chunk(plan: BatchPlan, session: Session, room: int, budget: Budget, *, num_new_pages: int) -> int:
    """Plan the session's next chunk within `room` tokens and return its size; 0 when the next grid point is too far."""
    total = len(session.tokens)
    end = min(total, session.num_computed + min(budget.prefill_chunk_tokens, room))
    if end < total:
        end -= end % CHUNK_GRID_TOKENS
    num_tokens = end - session.num_computed
    if num_tokens <= 0:
        return 0
    plan.chunks.append(ChunkPlan(session, num_tokens, num_new_pages))
    return num_tokens
