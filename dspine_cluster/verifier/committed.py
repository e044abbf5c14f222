"""What a pass gave a request. Its text is made where it is taken, beside the loop rather than in it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dspine_cluster.core.session import Counts, Session
from dspine_cluster.types import FinishReason, Logprobs, RoundOutput
from dspine_cluster.verifier.detokenizer import Detokenizer


class Committed(Struct, eq=False):
    """One request's part of a pass."""

    uid: int
    token_ids: tuple[int, ...]
    accepted_tokens: int
    finish_reason: FinishReason | None
    session: Session
    counts: Counts
    """The session's after the pass: it goes on."""
    text: str | Detokenizer
    """The text that became certain, where stop strings were searched in it; else what makes it of the tokens."""
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None

    def output(self) -> RoundOutput:
        """Asked once of each, in the order in which they were committed, from any thread."""
        text = self.text if isinstance(self.text, str) else self._detokenize(self.text)
        return RoundOutput(
            self.token_ids,
            text,
            self.accepted_tokens,
            self.finish_reason,
            self.session.usage_at(self.counts),
            self.logprobs,
            self.prompt_logprobs,
        )

    def _detokenize(self, detokenizer: Detokenizer) -> str:
        """The token that ends a request does not show unless that is asked for."""
        shown: Sequence[int] = self.token_ids
        if self.finish_reason is FinishReason.STOP and not detokenizer.shows_stop:
            shown = shown[:-1]
        text = detokenizer.push(shown).text
        return text if self.finish_reason is None else text + detokenizer.flush()
