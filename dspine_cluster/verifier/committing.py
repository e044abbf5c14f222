"""Commits what a pass has decided: each request up to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import sub

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.end_of_request import cut_at_end
from dspine_cluster.core.session import Session
from dspine_cluster.engine.blocks import Verdicts
from dspine_cluster.observability.metrics import VerifierMetrics
from dspine_cluster.types import FinishReason
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.detokenizer import Detokenizer
from dspine_cluster.verifier.drafted import DraftedBlock
from dspine_cluster.verifier.streams import Stream, Streams
from dspine_cluster.verifier.wanted import Wanted


@dataclass(slots=True)
class Commits:
    """What a pass has come to."""

    outputs: list[Committed] = field(default_factory=list)
    wanted: Wanted = field(default_factory=Wanted)
    """Of sessions that go on: those that had their round, then those whose prefill was completed."""


class Committing:
    """Where requests end, and what each pass gave them."""

    def __init__(
        self,
        streams: Streams,
        metrics: VerifierMetrics,
        eos_token_ids: Collection[int],
        max_proposals: int,
        end: Callable[[int], None],
    ) -> None:
        """A block has up to `max_proposals`. `end` is called with the uid of each request that has ended."""
        self._streams = streams
        self._metrics = metrics
        self._eos_token_ids = eos_token_ids
        self._max_proposals = max_proposals
        self._end = end

    def commit(self, plan: BatchPlan, verdicts: Verdicts, drafted: Sequence[DraftedBlock | None]) -> Commits:
        """Commit what a pass has decided, and end the requests that end with it. `verdicts` and `drafted` as for
        `PassRunner.run`."""
        completing = plan.completing
        for chunk in plan.chunks:
            chunk.session.advance_prefill(chunk.num_tokens)
            self._streams.prefix_cache.note_computed(chunk.session)
        commits = Commits()
        self._commit_rounds(commits, plan.blocks, verdicts, drafted)
        for number, session in enumerate(completing, len(plan.blocks)):
            self._commit_first(commits, session, verdicts.committed(number))
        self._streams.note_committed()
        return commits

    def _commit_rounds(
        self,
        commits: Commits,
        blocks: BlockPlans,
        verdicts: Verdicts,
        drafted: Sequence[DraftedBlock | None],
    ) -> None:
        sessions, uids, verified = blocks.sessions, blocks.uids, blocks.verify_lengths
        most, cohort = self._max_proposals, self._streams.cohort(uids)
        accepted = verdicts.num_accepted[: len(blocks)]
        starts, chosen = verdicts.starts, verdicts.tokens
        tokens = [chosen[start : start + num + 1] for start, num in zip(starts, accepted, strict=False)]
        proposed = [0 if block is None else len(block.cells) for block in drafted]
        useful = list(map(sub, blocks.num_useful, map(len, tokens)))
        texts: list[str | Detokenizer] = [*cohort.detokenizers]
        reasons: list[FinishReason | None] = [None] * len(sessions)
        may_end: list[int] = []
        if cohort.may_stop or min(useful, default=0) < 0 or not cohort.end_ids.isdisjoint(chosen):
            may_end = [
                row
                for row, (stream, own, left) in enumerate(zip(cohort.streams, tokens, useful, strict=True))
                if left < 0 or stream.may_stop or not stream.end_ids.isdisjoint(own)
            ]
        for row in may_end:
            tokens[row], reasons[row], texts[row] = self._cut(cohort.streams[row], tokens[row])
            accepted[row] = min(accepted[row], len(tokens[row]))
        counts = list(map(Session.commit_round, sessions, tokens, proposed, verified, accepted))
        commits.outputs += map(Committed, uids, tokens, accepted, reasons, sessions, counts, texts)
        commits.wanted = Wanted([*sessions], [*uids], [left if left < most else most for left in useful])
        self._metrics.note_rounds(zip(proposed, verified, accepted, map(len, tokens), strict=True))
        self._streams.prefix_cache.note_rounds(sessions)
        ended = [row for row in may_end if reasons[row] is not None]
        if ended:
            commits.wanted = commits.wanted.part([reason is None for reason in reasons])
        for row in ended:
            self._end(uids[row])

    def _commit_first(self, commits: Commits, session: Session, chosen: tuple[int, ...]) -> None:
        """What the end of its prefill gives a session."""
        stream = self._streams.by_uid[session.uid]
        tokens, reason, text = self._cut(stream, chosen)
        self._streams.commit_first(session, tokens[0])
        if reason is not None:
            self._end(session.uid)
        else:
            commits.wanted.add(session, min(session.remaining_output - 1, self._max_proposals))
        commits.outputs.append(Committed(session.uid, tokens, 0, reason, session, session.counts, text))

    def _cut(
        self, stream: Stream, tokens: tuple[int, ...]
    ) -> tuple[tuple[int, ...], FinishReason | None, str | Detokenizer]:
        """The tokens up to the request's end, why it ends with them if it does, and their text where stop strings are
        searched in it."""
        session, detokenizer = stream.session, stream.detokenizer
        num_kept, reason = cut_at_end(
            tokens,
            num_output_before=session.num_output,
            conditions=stream.rules.end_conditions,
            eos_token_ids=self._eos_token_ids,
        )
        if not detokenizer.may_stop:
            return tokens[:num_kept], reason, detokenizer
        hides_end = reason is FinishReason.STOP and not detokenizer.shows_stop
        pushed = detokenizer.push(tokens[: num_kept - hides_end])
        if pushed.stopped:
            num_kept, reason = pushed.num_tokens_kept, FinishReason.STOP
        text = pushed.text if reason is None else pushed.text + detokenizer.flush()
        return tokens[:num_kept], reason, text
