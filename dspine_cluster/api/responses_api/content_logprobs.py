"""Which tokens made the text of an answer, apart from those of its reasoning and its calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dspine_cluster.api.answering.answer_events import Content
from dspine_cluster.api.answering.logprobs import chat_logprobs
from dspine_cluster.api.answering.token_texts import TokenNames, TokenTexts
from dspine_cluster.api.bodies import ChosenLogprob
from dspine_cluster.types import RoundOutput


@dataclass(frozen=True, slots=True)
class _Span:
    """A piece of what the model wrote, and the tokens that made it: several where they share a character."""

    start: int
    end: int
    entries: list[ChosenLogprob]


class ContentLogprobs:
    """Gives the log-probabilities of each token once, with the first piece of content that it has a part in. Tokens
    without text, as that which ends an answer, have none."""

    def __init__(self, names: TokenNames, *, skip_special_tokens: bool = True) -> None:
        self._names = names
        self._skip_special_tokens = skip_special_tokens
        self._texts = TokenTexts(names.token_bytes, skip_special_tokens=skip_special_tokens)
        self._num_chars = 0
        self._spans = deque[_Span]()
        self._unfinished: list[ChosenLogprob] = []
        """Of tokens that began a character."""

    def push(self, output: RoundOutput) -> None:
        """A round of an answer that has log-probabilities."""
        for token_id, entry in zip(
            output.token_ids, chat_logprobs([output], self._names).content, strict=True
        ):
            if not self._names.token_bytes.of(token_id, skip_special_tokens=self._skip_special_tokens):
                continue
            self._unfinished.append(entry)
            if text := self._texts.push(token_id):
                end = self._num_chars + len(text)
                self._spans.append(_Span(self._num_chars, end, self._unfinished))
                self._num_chars = end
                self._unfinished = []

    def take(self, content: Content) -> list[ChosenLogprob]:
        """Those of the tokens of `content`, which comes after what was taken before."""
        entries: list[ChosenLogprob] = []
        while self._spans and self._spans[0].start < content.end:
            span = self._spans.popleft()
            if span.end > content.start:
                entries += span.entries
        if content.end > self._num_chars:  # the answer was cut off within a character
            entries += self._unfinished
            self._unfinished = []
        return entries
