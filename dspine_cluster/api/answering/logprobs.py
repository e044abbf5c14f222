"""Log-probabilities in OpenAI's two shapes: that of chats, and the older one of text completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dspine_cluster.api.answering.token_texts import TokenNames, TokenTexts
from dspine_cluster.api.bodies import ChatLogprobs, ChosenLogprob, TextLogprobs, TokenLogprob
from dspine_cluster.types import Logprobs, RoundOutput

_Row = tuple[int, float, Sequence[tuple[int, float]]]
"""A token, its log-probability, and the most likely tokens with theirs."""


def chat_logprobs(outputs: Iterable[RoundOutput], names: TokenNames) -> ChatLogprobs:
    """Those of the tokens of `outputs`."""
    content = [
        ChosenLogprob(
            token=names.name(token_id),
            logprob=logprob,
            bytes=list(names.data(token_id)),
            top_logprobs=[
                TokenLogprob(token=names.name(other), logprob=value, bytes=list(names.data(other)))
                for other, value in top
            ],
        )
        for output in outputs
        for token_id, logprob, top in _rows(output.token_ids, output.logprobs)
    ]
    return ChatLogprobs(content=content, refusal=None)


class TextLogprobsWriter:
    """Writes those of one completion, part by part."""

    def __init__(self, names: TokenNames, prompt_ids: Sequence[int] = (), prompt_text: str = "") -> None:
        """With a prompt, the text of the completion begins with it."""
        self._names = names
        self._prompt_ids = prompt_ids
        self._prompt_text = prompt_text
        self._texts = TokenTexts(names.token_bytes)
        self._offset = 0

    def write(self, outputs: Iterable[RoundOutput]) -> TextLogprobs:
        """Those of the tokens of `outputs`; the prompt's, which the first one holds, before them."""
        part = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for output in outputs:
            if output.prompt_logprobs is not None and self._prompt_ids:
                self._write_prompt(part, output.prompt_logprobs)
            self._write(part, _rows(output.token_ids, output.logprobs), self._texts)
        return part

    def _write_prompt(self, part: TextLogprobs, logprobs: Logprobs) -> None:
        first, *others = self._prompt_ids
        texts = TokenTexts(self._names.token_bytes, skip_special_tokens=False)
        part.tokens.append(self._names.name(first))
        part.token_logprobs.append(None)  # nothing comes before it
        part.top_logprobs.append(None)
        part.text_offset.append(self._offset)
        self._offset += len(texts.push(first))
        self._write(part, _rows(others, logprobs), texts)
        self._offset = len(self._prompt_text)

    def _write(self, part: TextLogprobs, rows: Iterable[_Row], texts: TokenTexts) -> None:
        for token_id, logprob, top in rows:
            name = self._names.name(token_id)
            part.tokens.append(name)
            part.token_logprobs.append(logprob)
            likeliest: dict[str, float] = {}
            for other, value in top:
                likeliest.setdefault(self._names.name(other), value)  # names of broken UTF-8 may be equal
            part.top_logprobs.append(likeliest | {name: logprob})
            part.text_offset.append(self._offset)
            self._offset += len(texts.push(token_id))


def _rows(token_ids: Sequence[int], logprobs: Logprobs | None) -> Iterator[_Row]:
    logprobs = logprobs or Logprobs()
    for token_id, logprob, ids, values in zip(
        token_ids, logprobs.chosen, logprobs.top_ids, logprobs.top, strict=True
    ):
        yield token_id, logprob, list(zip(ids, values, strict=True))
