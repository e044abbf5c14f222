"""Plans what one pass through the target holds: which blocks, which prompt chunks, and who must make room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans, ChunkPlan
from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.core.resume import COLD_START, Resume
from dspine_cluster.core.session import Session
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


class Budget(NamedTuple):
    """What a pass may use."""

    free_pages: int
    """Pages that can be allocated, those that are cached and idle included."""
    free_slots: int
    max_batch_tokens: int
    prefill_chunk_tokens: int


def proposal_room(blocks: BlockPlans, num_proposals: Sequence[int], budget: Budget) -> int:
    """How many proposals a pass can verify, asked before verify lengths are chosen: whoever lowers these afterwards
    biases sampled output. None where all proposals together, whatever of them is chosen, would lack pages.

    Args:
        blocks: sessions whose round may run now.
        num_proposals: the number of proposals of each.
        budget: memory and size limits.
    """
    # The pages of all that is computed are there: a block lacks one at most.
    if len(blocks) > budget.free_pages and len(_lacking(blocks, num_proposals)) > budget.free_pages:
        return 0
    return budget.max_batch_tokens - CHUNK_GRID_TOKENS - len(blocks)


def load_ahead(
    blocks: BlockPlans, num_proposals: Sequence[int], prefilling: Sequence[Session], budget: Budget
) -> PassLoad:
    """What the pass will hold beside proposals, as far as that is known before its plan; see `proposal_room` and
    `plan_batch`."""
    return PassLoad(
        num_prefill_tokens=sum(
            min(budget.prefill_chunk_tokens, len(session.tokens) - session.num_computed)
            for session in prefilling
        ),
        num_kv_tokens=sum(blocks.starts),
        max_verified_tokens=proposal_room(blocks, num_proposals, budget),
    )


def plan_batch(
    blocks: BlockPlans,
    running: Sequence[Session],
    prefilling: Sequence[Session],
    waiting: Iterable[Session],
    budget: Budget,
    prefixes: Prefixes,
) -> BatchPlan:
    """Plan one pass.

    Args:
        blocks: sessions whose round may run now, a subset of `running`, each with its verify length; together at most
            `proposal_room`.
        running: every session that holds pages, in order of admission.
        prefilling: those of them whose prompts are being computed, in the same order.
        waiting: sessions without pages, in the order in which they are to be admitted.
        budget: memory and size limits.
        prefixes: the cached prefixes.

    Where pages are missing although verify lengths are 0, sessions are preempted until the anchors of the others fit:
    the youngest of lowest priority of the client that holds most pages over its share. A waiting session is admitted
    only when all its tokens fit and one page is left for every running session, so that admission does not cause the
    next preemption.
    """
    plan = _plan_blocks(blocks, running, budget, prefixes)
    room = budget.max_batch_tokens - len(plan.blocks) - sum(plan.blocks.verify_lengths)
    for session in prefilling:
        if plan.preempted and session in plan.preempted:
            continue
        num_tokens = _chunk_size(session, session.num_computed, session.resume, room, budget)
        if num_tokens:
            plan.chunks.append(ChunkPlan(session, num_tokens, num_new_pages=0))
            room -= num_tokens
    if plan.preempted:
        return plan
    num_kept = len(running)
    free_pages = budget.free_pages - len(plan.blocks.lacking)
    for session in islice(waiting, budget.free_slots):
        chunk = _plan_admission(session, room, budget, free_pages - num_kept, prefixes)
        if chunk is None:
            break
        plan.chunks.append(chunk)
        room -= chunk.num_tokens
        free_pages -= _num_pages_taken(chunk)
        num_kept += 1
    return plan


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
    blocks: BlockPlans, running: Sequence[Session], budget: Budget, prefixes: Prefixes
) -> BatchPlan:
    lengths, free_pages = blocks.verify_lengths, budget.free_pages
    assert sum(lengths) <= proposal_room(blocks, lengths, budget)
    lacking = _lacking(blocks, lengths)
    gone: list[Session] = []
    if len(lacking) > free_pages:
        kept = list(running)
        while len(lacking) > free_pages:
            victim = _victim(kept)
            kept.remove(victim)
            gone.append(victim)
            free_pages += prefixes.num_returned(victim)
            lacking = [session for session in lacking if session is not victim]
        preempted = {session.uid for session in gone}
        kept = [session for session in blocks.sessions if session.uid not in preempted]
        blocks = BlockPlans(kept, [0] * len(kept))  # where pages are missing nothing is verified
    blocks.lacking = lacking
    return BatchPlan(blocks, preempted=gone)


def _victim(running: Sequence[Session]) -> Session:
    """Who makes room. Priorities are among requests of one client: whoever sets them low cannot push out others."""
    held: dict[str, float] = {}
    for session in reversed(running):  # among equal clients the one that was admitted last
        request = session.request
        held[request.client] = held.get(request.client, 0.0) + len(session.pages) / request.client_share
    client = max(held, key=held.__getitem__)
    own = [session for session in running if session.request.client == client]
    return max(own, key=lambda session: (session.request.priority, session.arrival))


def _lacking(blocks: BlockPlans, lengths: Sequence[int]) -> list[Session]:
    """Those whose blocks need a page more, of so many proposals each."""
    return [
        session
        for session, start, length in zip(blocks.sessions, blocks.starts, lengths, strict=True)
        if start + length >= PAGE_TOKENS * len(session.pages)
    ]


def _chunk_size(session: Session, start: int, resume: Resume, room: int, budget: Budget) -> int:
    """Tokens of the session's next chunk, from `start` on; 0 when the next grid point is too far."""
    total = len(session.tokens)
    end = min(total, start + min(budget.prefill_chunk_tokens, room), resume.next_split(start, total))
    if end < total:
        end -= end % CHUNK_GRID_TOKENS
    return max(0, end - start)
