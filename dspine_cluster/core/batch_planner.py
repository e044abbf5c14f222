"""What one pass through the target holds: which blocks, which prompt chunks, and who must make room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.core.resume import COLD_START, Resume
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.core.verify_length import PassLoad
from dspine_cluster.types import CHUNK_GRID_TOKENS, PAGE_TOKENS


class Prefixes(Protocol):
    """What the plan has to know of cached prefixes."""

    def find(self, session: Session) -> Resume:
        """Where a waiting session would start now."""
        ...

    def num_returned(self, session: Session) -> int:
        """Pages that can be allocated anew once the session has given up its own."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """What a pass may use."""

    free_pages: int
    """Pages that can be allocated, those that are cached and idle included."""
    free_slots: int
    max_batch_tokens: int
    prefill_chunk_tokens: int


@dataclass(slots=True)
class BlockPlans:
    """The requests that a pass decodes, in columns: of each its anchor and its first proposals."""

    sessions: list[Session] = field(default_factory=list)
    verify_lengths: list[int] = field(default_factory=list)
    num_new_pages: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sessions)


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Prefill one request's next `num_tokens` committed tokens."""

    session: Session
    num_tokens: int
    num_new_pages: int
    """Pages for all its uncomputed tokens, given when it is admitted, so that prefill never stalls on memory."""
    resume: Resume | None = None
    """How to admit the session, if it waits until now."""

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

    blocks: BlockPlans = field(default_factory=BlockPlans)
    chunks: list[ChunkPlan] = field(default_factory=list)
    preempted: list[Session] = field(default_factory=list)

    @property
    def sessions(self) -> list[Session]:
        """All that run in this pass, in the order of its rows."""
        return [*self.blocks.sessions, *[chunk.session for chunk in self.chunks]]

    @property
    def completing(self) -> list[Session]:
        """Those whose prefill it completes. Asked before it is run."""
        return [chunk.session for chunk in self.chunks if chunk.completes_prefill]

    @property
    def is_empty(self) -> bool:
        return not self.blocks and not self.chunks

    @property
    def load(self) -> PassLoad:
        """What it holds beside proposals. Asked before it is committed."""
        return PassLoad(
            num_prefill_tokens=sum(chunk.num_tokens for chunk in self.chunks),
            num_kv_tokens=sum([session.num_computed for session in self.blocks.sessions]),
        )


def proposal_room(blocks: Sequence[tuple[Session, int]], budget: Budget) -> int:
    """How many proposals a pass can verify, asked before verify lengths are chosen: whoever lowers these afterwards
    biases sampled output. None where all proposals together, whatever of them is chosen, would lack pages.

    Args:
        blocks: sessions whose round may run now, each with the number of its proposals.
        budget: memory and size limits.
    """
    # The pages of all that is computed are there, and proposals are fewer than a page holds: a block lacks one at most.
    if len(blocks) > budget.free_pages and sum(_pages_missing(blocks)) > budget.free_pages:
        return 0
    return budget.max_batch_tokens - CHUNK_GRID_TOKENS - len(blocks)


def load_ahead(blocks: Sequence[tuple[Session, int]], running: Sequence[Session], budget: Budget) -> PassLoad:
    """What the pass will hold beside proposals, as far as that is known before its plan; see `proposal_room`."""
    prompts = _prompts(blocks, running)
    return PassLoad(
        num_prefill_tokens=sum(
            min(budget.prefill_chunk_tokens, len(session.tokens) - session.num_computed)
            for session in prompts
        ),
        num_kv_tokens=sum([session.num_computed for session, _ in blocks]),
        max_verified_tokens=proposal_room(blocks, budget),
    )


def plan_batch(
    decoding: Sequence[tuple[Session, int]],
    running: Sequence[Session],
    waiting: Iterable[Session],
    budget: Budget,
    prefixes: Prefixes,
) -> BatchPlan:
    """Plan one pass.

    Args:
        decoding: sessions whose round may run now, each with its verify length; together at most `proposal_room`.
            A subset of `running`.
        running: every session that holds pages, in order of admission.
        waiting: sessions without pages, in the order in which they are to be admitted.
        budget: memory and size limits.
        prefixes: the cached prefixes.

    Where pages are missing although verify lengths are 0, sessions are preempted until the anchors of the others fit:
    the youngest of lowest priority of the client that holds most pages over its share. A waiting session is admitted
    only when all its tokens fit and one page is left for every running session, so that admission does not cause the
    next preemption.
    """
    plan = BatchPlan()
    _plan_blocks(plan, decoding, running, budget, prefixes)
    room = budget.max_batch_tokens - len(plan.blocks) - sum(plan.blocks.verify_lengths)
    for session in _prompts(decoding, running):
        if plan.preempted and session in plan.preempted:
            continue
        num_tokens = _chunk_size(session, session.num_computed, session.resume, room, budget)
        if num_tokens:
            plan.chunks.append(ChunkPlan(session, num_tokens, num_new_pages=0))
            room -= num_tokens
    if plan.preempted:
        return plan
    num_kept = len(running)
    free_slots = budget.free_slots
    free_pages = budget.free_pages - sum(plan.blocks.num_new_pages)
    for session in waiting:
        if free_slots == 0:
            break
        chunk = _plan_admission(session, room, budget, free_pages - num_kept, prefixes)
        if chunk is None:
            break
        plan.chunks.append(chunk)
        room -= chunk.num_tokens
        free_pages -= _num_pages_taken(chunk)
        free_slots -= 1
        num_kept += 1
    return plan


def _prompts(decoding: Sequence[tuple[Session, int]], running: Sequence[Session]) -> list[Session]:
    """Those that run and are still prefilled."""
    if len(decoding) == len(running):
        return []
    return [session for session in running if session.phase is Phase.PREFILL]


def _plan_admission(
    session: Session, room: int, budget: Budget, free_pages: int, prefixes: Prefixes
) -> ChunkPlan | None:
    """The first chunk of a waiting session; None when it does not fit.

    A cold start needs one page less than a match with a page to copy: it is what fits into the smallest pool.
    """
    for resume in (prefixes.find(session), COLD_START):
        start = resume.match.num_tokens
        num_tokens = _chunk_size(session, start, resume, room, budget)
        num_new_pages = num_pages_for(len(session.tokens) + 1) - len(resume.match.pages)
        chunk = ChunkPlan(session, num_tokens, num_new_pages, resume)
        if num_tokens and _num_pages_taken(chunk) <= free_pages:
            return chunk
    return None


def _num_pages_taken(chunk: ChunkPlan) -> int:
    """Pages that cannot be allocated any more once the chunk's session is admitted."""
    return chunk.num_new_pages + (chunk.resume.match.num_idle_pages if chunk.resume else 0)


def _plan_blocks(
    plan: BatchPlan,
    decoding: Sequence[tuple[Session, int]],
    running: Sequence[Session],
    budget: Budget,
    prefixes: Prefixes,
) -> None:
    assert sum([length for _, length in decoding]) <= proposal_room(decoding, budget)
    blocks = decoding
    free_pages = budget.free_pages
    missing = _pages_missing(blocks)
    if sum(missing) > free_pages:
        kept = list(running)
        while sum(missing) > free_pages:
            victim = _victim(kept)
            kept.remove(victim)
            plan.preempted.append(victim)
            free_pages += prefixes.num_returned(victim)
            blocks = [(session, length) for session, length in blocks if session is not victim]
            missing = _pages_missing(blocks)
    plan.blocks = BlockPlans([session for session, _ in blocks], [length for _, length in blocks], missing)


def _victim(running: Sequence[Session]) -> Session:
    """Who makes room. Priorities are among requests of one client: whoever sets them low cannot push out others."""
    held: dict[str, float] = {}
    for session in reversed(running):  # among equal clients the one that was admitted last
        request = session.request
        held[request.client] = held.get(request.client, 0.0) + len(session.pages) / request.client_share
    client = max(held, key=held.__getitem__)
    own = [session for session in running if session.request.client == client]
    return max(own, key=lambda session: (session.request.priority, session.arrival))


def _pages_missing(blocks: Sequence[tuple[Session, int]]) -> list[int]:
    """How many pages each block lacks."""
    return [
        count if (count := (len(s.tokens) + length - 1) // PAGE_TOKENS + 1 - len(s.pages)) > 0 else 0
        for s, length in blocks
    ]


def _chunk_size(session: Session, start: int, resume: Resume, room: int, budget: Budget) -> int:
    """Tokens of the session's next chunk, from `start` on; 0 when the next grid point is too far."""
    total = len(session.tokens)
    end = min(total, start + min(budget.prefill_chunk_tokens, room), resume.next_split(start, total))
    if end < total:
        end -= end % CHUNK_GRID_TOKENS
    return max(0, end - start)
