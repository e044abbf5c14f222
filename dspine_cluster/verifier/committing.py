"""Commits what a pass has decided: each request up to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dspine_cluster.core.acceptance import cut_at_end
from dspine_cluster.core.batch_planner import BatchPlan
from dspine_cluster.engine.blocks import Verdict
from dspine_cluster.observability.metrics import VerifierMetrics
from dspine_cluster.types import FinishReason
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.detokenizer import Detokenizer
from dspine_cluster.verifier.drafted import DraftedBlock
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
        verdicts: Sequence[Verdict],
        drafted: Mapping[int, DraftedBlock],
    ) -> list[Committed]:
        """Commit what a pass has decided, and end the requests that end with it. `verdicts` and `drafted` as for
        `PassRunner.run`."""
        sessions = [*plan.blocks.sessions, *plan.completing]
        num_blocks, lengths = len(plan.blocks), plan.blocks.verify_lengths
        for chunk in plan.chunks:
            chunk.session.advance_prefill(chunk.num_tokens)
            self._streams.prefix_cache.note_computed(chunk.session)
        proposed: list[int] = []
        accepted: list[int] = []
        committed: list[Committed] = []
        charged: dict[str, int] = {}  # tokens by client
        streams, by_uid = self._streams, self._streams.by_uid
        grows_in_decoding = streams.prefix_cache.grows_in_decoding
        for number, (session, verdict) in enumerate(zip(sessions, verdicts, strict=True)):
            uid = session.uid
            stream = by_uid[uid]
            tokens, num_accepted = verdict.token_ids, verdict.num_accepted
            text: str | Detokenizer = stream.detokenizer
            reason = None
            if (
                stream.may_stop
                or len(session.tokens) + len(tokens) >= session.max_length
                or not stream.end_ids.isdisjoint(tokens)
            ):
                tokens, reason, text = self._cut(stream, tokens)
                num_accepted = min(num_accepted, len(tokens))
            if number < num_blocks:
                block = drafted.get(uid)
                num_proposed = 0 if block is None else len(block.tokens)
                counts = session.commit_round(tokens, num_proposed, lengths[number], num_accepted)
                proposed.append(num_proposed)
                accepted.append(num_accepted)
            else:
                session.commit_first(tokens[0])
                counts = session.counts()
                stream.note_phase()
            client = session.request.client
            charged[client] = charged.get(client, 0) + len(tokens)
            if reason is not None:
                self._end(uid)
            elif grows_in_decoding:
                streams.prefix_cache.note_computed(session)
            committed.append(Committed(uid, tokens, num_accepted, reason, session, counts, text))
        for client, num_tokens in charged.items():
            streams.charge(client, num_tokens)
        self._metrics.note_rounds(
            proposed=proposed,
            verified=lengths,
            accepted=accepted,
            committed=[len(own.token_ids) for own in committed[:num_blocks]],
        )
        return committed

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
