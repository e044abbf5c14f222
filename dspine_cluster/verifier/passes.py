"""One pass through the target, from a plan to the tokens that each request commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from dspine_cluster.core.batch_planner import BatchPlan, BlockPlan, ChunkPlan
from dspine_cluster.core.session import Session
from dspine_cluster.engine.batch import Segment
from dspine_cluster.engine.blocks import Block, Verdict
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.sampling import verify
from dspine_cluster.verifier.attachments import DraftedBlock
from dspine_cluster.verifier.logprobs import LogprobsReader
from dspine_cluster.verifier.streams import Streams

PassItem = BlockPlan | ChunkPlan
"""A block, or the chunk that completes a prefill."""


class PassRunner:
    """Runs plans on an engine and lets the target decide."""

    def __init__(self, engine: Engine, streams: Streams, generator: torch.Generator) -> None:
        self._engine = engine
        self._streams = streams
        self._generator = generator
        self.logprobs = LogprobsReader(engine.logits)

    def run(self, plan: BatchPlan, drafted: Mapping[int, DraftedBlock]) -> list[tuple[PassItem, Verdict]]:
        """A verdict for each block of the plan, then for each chunk that completes its session's prefill.

        `drafted` holds the blocks that drafters proposed, by uid. The accepted inputs of each block are left to be
        replayed by the next pass.
        """
        sessions = [block.session for block in plan.blocks]
        # Proposals that grammars forbid go here and not before verify lengths are chosen: these may not depend on what
        # the proposals are.
        blocks = [
            self._block(item.session, _proposals(item, drafted), drafted).legal() for item in plan.blocks
        ]
        hidden = self._engine.forward(
            [
                _segment(session, [session.tokens[-1], *own])
                for session, own in zip(sessions, (block.proposals for block in blocks), strict=True)
            ],
            [_segment(chunk.session, chunk.tokens) for chunk in plan.chunks],
        )  # [num_tokens, hidden_size]
        block_rows = [block.num_rows for block in blocks]
        num_block_rows = sum(block_rows)
        completing = list(_completing_chunks(plan, num_block_rows))
        blocks += [self._block(chunk.session, [], {}) for chunk, _ in completing]
        sampled = hidden[:num_block_rows]
        if completing:
            sampled = torch.cat((sampled, hidden[[row for _, row in completing]]))
        verdicts = verify(lambda start, end: self._engine.logits(sampled[start:end]), blocks, self._generator)
        self._keep_accepted(plan.blocks, verdicts)
        self.logprobs.read(plan, hidden, block_rows, verdicts)
        items: list[PassItem] = [*plan.blocks, *(chunk for chunk, _ in completing)]
        return list(zip(items, verdicts, strict=True))

    def _block(
        self, session: Session, proposals: Sequence[int], drafted: Mapping[int, DraftedBlock]
    ) -> Block:
        rules = self._streams[session.uid].rules
        source = drafted.get(session.uid)
        if not proposals or source is None:
            return Block(rules, session.tokens, proposals)
        return Block(rules, session.tokens, proposals, source.candidates, source.probs)

    def _keep_accepted(self, blocks: Sequence[BlockPlan], verdicts: Sequence[Verdict]) -> None:
        """The accepted proposals of each block are committed; the rest of its inputs is void."""
        self._engine.state_pool.set_pending(
            [_state_slot(item.session) for item in blocks],
            [verdict.num_accepted for verdict in verdicts[: len(blocks)]],
        )


def _completing_chunks(plan: BatchPlan, first_row: int) -> Iterator[tuple[ChunkPlan, int]]:
    """The chunks that pass their session's last committed token through the target, and that token's row."""
    row = first_row
    for chunk in plan.chunks:
        row += chunk.num_tokens
        if chunk.completes_prefill:
            yield chunk, row - 1


def _proposals(item: BlockPlan, drafted: Mapping[int, DraftedBlock]) -> list[int]:
    return drafted[item.session.uid].tokens[: item.verify_length] if item.verify_length else []


def _segment(session: Session, tokens: Sequence[int]) -> Segment:
    return Segment(tokens, session.num_computed, session.pages, _state_slot(session))


def _state_slot(session: Session) -> int:
    assert session.state_slot is not None
    return session.state_slot
