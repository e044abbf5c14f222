"""One pass through the target, from a plan to the tokens that each request commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

import numpy as np
import torch

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.session import Session
from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.blocks import BlockBatch, DrawnFrom, Verdicts
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.page_table import PageTable
from dspine_cluster.engine.sampling import verify
from dspine_cluster.transport.messages import Int64Array, UInt8Array
from dspine_cluster.verifier.drafted import DraftedBlock, lay_out
from dspine_cluster.verifier.logprobs import LogprobsReader
from dspine_cluster.verifier.streams import Streams


class PassRunner:
    """Runs plans on an engine and lets the target decide."""

    def __init__(self, engine: Engine, streams: Streams, generator: torch.Generator) -> None:
        self._engine = engine
        self._streams = streams
        self._generator = generator
        self._page_table = PageTable(engine.state_pool.num_slots)
        self.logprobs = LogprobsReader(engine.logits)

    def run(
        self, plan: BatchPlan, drafted: Sequence[DraftedBlock | None], *, with_features: bool = True
    ) -> Verdicts:
        """Verdicts: one for each block of the plan, then for each chunk that completes its session's prefill.

        `drafted` holds what drafters proposed for each block. Without `with_features` features may be left out. The
        accepted inputs of each block are left to be replayed by the next pass.
        """
        blocks = self._blocks(plan.blocks, drafted)
        packed = self._pack(plan, blocks)
        hidden = sampled = self._engine.forward(packed, with_features=with_features)
        if plan.chunks:
            num_rows = len(blocks.tokens)
            completing = list(_completing_chunks(plan, num_rows))
            sampled = torch.cat((hidden[:num_rows], hidden[[row for _, row in completing]]))
            for session, _ in completing:
                blocks.append(self._streams.by_uid[session.uid].rules, session.tokens)
        verdicts = verify(lambda start, end: self._engine.logits(sampled[start:end]), blocks, self._generator)
        # The accepted proposals of each block are committed; the rest of its inputs is void.
        num_blocks = packed.num_blocks
        self._engine.state_pool.set_pending(
            packed.columns[2, :num_blocks], verdicts.num_accepted[:num_blocks]
        )
        self.logprobs.read(plan, hidden, verdicts)
        return verdicts

    def features_start(self, session: Session, end: int) -> int:
        """The first position from which on features of all positions before `end` were computed."""
        return self._engine.features_start(self._page_table.rows[self._state_slot(session)], end)

    def read_features(
        self, sessions: Sequence[Session], starts: Int64Array, counts: Int64Array
    ) -> UInt8Array:
        """Raw feature rows of positions start .. start + count - 1 of each session, one after the other: uint8
        `[num_rows, row_bytes]`."""
        slots = np.array(
            [x.state_slot if x.first_new_page is None else self._state_slot(x) for x in sessions]
        )
        return self._engine.read_features(self._page_table, slots, starts, counts)

    def _blocks(self, plans: BlockPlans, drafted: Sequence[DraftedBlock | None]) -> BlockBatch:
        cohort = self._streams.cohort(plans.uids)
        contexts: list[Sequence[int]] = [*cohort.contexts]
        drafts: list[DrawnFrom | None] = [*drafted]
        tokens = lay_out([context[-1] for context in contexts], drafted, plans.verify_lengths)
        num_rows = [length + 1 for length in plans.verify_lengths]
        blocks = BlockBatch([*cohort.rules], contexts, num_rows, tokens, drafts)
        # Proposals that grammars forbid go here and not before verify lengths are chosen: these may not depend on what
        # the proposals are.
        return blocks.legal() if self._streams.num_grammars else blocks

    def _pack(self, plan: BatchPlan, blocks: BlockBatch) -> PackedRows:
        """What the target is given: each block's anchor and proposals, then the chunks."""
        sessions, starts = plan.blocks.sessions, plan.blocks.starts
        tokens, lengths = blocks.tokens, blocks.num_rows
        state_slots = self._streams.cohort(plan.blocks.uids).state_slots
        if plan.chunks:
            sessions = plan.sessions
            starts = [session.num_computed for session in sessions]
            state_slots = cast("list[int]", [session.state_slot for session in sessions])
            lengths = lengths + [chunk.num_tokens for chunk in plan.chunks]
            tokens = [*tokens, *chain.from_iterable([chunk.tokens for chunk in plan.chunks])]
        for session in sessions:
            if session.first_new_page is not None:
                self._state_slot(session)
        return PackedRows(tokens, lengths, starts, state_slots, self._page_table, num_blocks=len(blocks))

    def _state_slot(self, session: Session) -> int:
        """The session's slot, whose row of the page table is up to date then."""
        slot = session.state_slot
        assert slot is not None
        if session.first_new_page is not None:
            self._page_table.write(slot, session.pages, session.first_new_page)
            session.first_new_page = None
        return slot


def _completing_chunks(plan: BatchPlan, first_row: int) -> Iterator[tuple[Session, int]]:
    """The sessions whose last committed token the chunks pass through the target, and that token's row."""
    row = first_row
    for chunk in plan.chunks:
        row += chunk.num_tokens
        if chunk.completes_prefill:
            yield chunk.session, row - 1
