"""The output of one round, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dspine_cluster.api.answering.token_texts import TokenTexts
from dspine_cluster.types import Logprobs, RoundOutput, Usage


class TokenSplitter:
    """Of one completion. The parts join to what the rounds gave. Each token has its own text as far as the round gave
    it; what was held back comes with a token of a later round."""

    def __init__(self, texts: TokenTexts) -> None:
        """`texts` makes the texts as the verifier does."""
        self._texts = texts
        self._num_chars = 0
        """Of the tokens so far; what was given of them may be less."""
        self._num_given = 0
        self._usage = Usage()

    def split(self, output: RoundOutput) -> Iterator[RoundOutput]:
        """One output a token. Rounds and their counts come with the last one, which also has what ends a stream."""
        num_tokens = len(output.token_ids)
        text = output.text
        for number, token_id in enumerate(output.token_ids[:-1]):
            self._num_chars += len(self._texts.push(token_id))
            piece = text[: max(self._num_chars - self._num_given, 0)]
            text = text[len(piece) :]
            self._num_given += len(piece)
            usage = replace(
                self._usage,
                prompt_tokens=output.usage.prompt_tokens,
                cached_prompt_tokens=output.usage.cached_prompt_tokens,
                output_tokens=output.usage.output_tokens - num_tokens + 1 + number,
            )
            yield RoundOutput(
                (token_id,),
                piece,
                accepted_tokens=int(number < output.accepted_tokens),
                usage=usage,
                logprobs=_at(output.logprobs, number),
                prompt_logprobs=output.prompt_logprobs if number == 0 else None,
            )
        for token_id in output.token_ids[-1:]:
            self._num_chars += len(self._texts.push(token_id))
        self._num_given += len(text)
        self._usage = output.usage
        yield replace(
            output,
            token_ids=output.token_ids[-1:],
            text=text,
            accepted_tokens=int(output.accepted_tokens >= num_tokens > 0),
            logprobs=_at(output.logprobs, max(num_tokens - 1, 0)),
            prompt_logprobs=output.prompt_logprobs if num_tokens <= 1 else None,
        )


def _at(logprobs: Logprobs | None, number: int) -> Logprobs | None:
    return None if logprobs is None else logprobs[number : number + 1]
