"""Commits what a pass has decided: each request up to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dspine_cluster.core.acceptance import cut_at_end
from dspine_cluster.core.batch_planner import BatchPlan, BlockPlan
from dspine_cluster.engine.blocks import Verdict
from dspine_cluster.observability.metrics import RoundCounts, VerifierMetrics
from dspine_cluster.types import FinishReason
from dspine_cluster.verifier.attachments import DraftedBlock
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.detokenizer import Detokenizer
from dspine_cluster.verifier.passes import PassItem
from dspine_cluster.verifier.streams import Stream, Streams


class Committing:
    """Where requests end, and what each pass gave them."""

    def __init__(
        self,
        streams: Streams,
        metrics: VerifierMetrics,
        eos_token_ids: Collection[int],
        end: Callable[[int], None],
    ) -> None:
        """`end` is called with the uid of each request that has ended."""
        self._streams = streams
        self._metrics = metrics
        self._eos_token_ids = eos_token_ids
        self._end = end

    def commit(
        self,
        plan: BatchPlan,
        decisions: Sequence[tuple[PassItem, Verdict]],
        drafted: Mapping[int, DraftedBlock],
    ) -> list[Committed]:
        """Commit what a pass has decided, and end the requests that end with it. `drafted` as for `PassRunner.run`."""
        for chunk in plan.chunks:
            chunk.session.advance_prefill(chunk.num_tokens)
            self._streams.prefix_cache.note_computed(chunk.session)
        rounds: list[RoundCounts] = []
        committed = [self._commit_tokens(item, verdict, drafted, rounds) for item, verdict in decisions]
        self._metrics.note_rounds(rounds)
        return committed

    def _commit_tokens(
        self,
        item: PassItem,
        verdict: Verdict,
        drafted: Mapping[int, DraftedBlock],
        rounds: list[RoundCounts],
    ) -> Committed:
        """Commit a verdict up to the request's end, and end the request there."""
        session = item.session
        stream = self._streams[session.uid]
        tokens, num_accepted = verdict.token_ids, verdict.num_accepted
        text: str | Detokenizer = stream.detokenizer
        reason = None
        if stream.may_end_with(tokens):
            tokens, reason, text = self._cut(stream, tokens)
            num_accepted = min(num_accepted, len(tokens))
        self._streams.charge(session, len(tokens))
        if isinstance(item, BlockPlan):
            block = drafted.get(session.uid)
            counts = RoundCounts(
                len(block.tokens) if block is not None else 0, item.verify_length, num_accepted, len(tokens)
            )
            session.commit_round(
                tokens,
                num_proposed=counts.num_proposed,
                num_verified=counts.num_verified,
                num_accepted=num_accepted,
            )
            rounds.append(counts)
        else:
            session.commit_first(tokens[0])
        if reason is not None:
            self._end(session.uid)
        else:
            self._streams.prefix_cache.note_computed(session)
        return Committed(session.uid, tokens, num_accepted, reason, session.usage, text)

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
        pushed = detokenizer.push(tokens[: num_kept - 1 if reason is FinishReason.STOP else num_kept])
        if pushed.stopped:
            num_kept, reason = pushed.num_tokens_kept, FinishReason.STOP
        text = pushed.text if reason is None else pushed.text + detokenizer.flush()
        return tokens[:num_kept], reason, text
