"""What an answer tells of one choice beside its text, as far as the client asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dspine_cluster.api.answering.draft_stats import DraftStats
from dspine_cluster.api.answering.token_events import TokenSplitter
from dspine_cluster.api.answering.token_texts import TokenNames, TokenTexts
from dspine_cluster.api.bodies import ChatChoice, ChatChunkChoice, DspineAnswer, TextChoice, TokenOrigin
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest, DspineOptions, StreamOptions
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import RoundOutput


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the answer to one request holds beside its text."""

    names: TokenNames
    skip_special_tokens: bool = True
    num_choices: int = 1
    """Completions of each prompt."""
    include_usage: bool = False
    """A stream ends with an event that holds the usage."""
    continuous_usage: bool = False
    """Its events that bring something hold the usage so far."""
    logprobs: bool = False
    token_ids: bool = False
    stats: bool = False
    """How each choice was decoded."""
    origins: bool = False
    """Where each token came from."""
    each_token: bool = False
    """A stream has an event for each token."""

    @property
    def only_text(self) -> bool:
        """Whether events within a choice tell of nothing else."""
        return not (self.continuous_usage or self.logprobs or self.token_ids or self.origins)

    @classmethod
    def of(cls, body: ChatCompletionRequest | CompletionRequest, token_bytes: TokenBytes) -> AnswerOptions:
        stream = body.stream_options or StreamOptions()
        dspine = body.dspine or DspineOptions()
        return cls(
            names=TokenNames(token_bytes, as_ids=body.return_tokens_as_token_ids is True),
            skip_special_tokens=body.skip_special_tokens is not False,
            num_choices=body.num_choices,
            include_usage=stream.include_usage,
            continuous_usage=stream.include_usage and stream.continuous_usage_stats,
            logprobs=body.num_top_logprobs is not None,
            token_ids=body.return_token_ids is True,
            stats=dspine.include_stats,
            origins=dspine.include_origins,
            each_token=body.stream is True and dspine.stream_tokens,
        )


class ChoiceDetails:
    """Collects what rounds tell, and gives it to the next part of the answer."""

    def __init__(self, options: AnswerOptions) -> None:
        self._options = options
        self._wants_outputs = options.logprobs or options.token_ids or options.origins
        self._tells = self._wants_outputs or options.stats
        self._outputs: list[RoundOutput] = []
        self._stats = DraftStats()
        self._texts = self._new_texts()
        self._splitter = TokenSplitter(self._new_texts()) if options.each_token else None

    def _new_texts(self) -> TokenTexts:
        skips = self._options.skip_special_tokens
        return TokenTexts(self._options.names.token_bytes, skip_special_tokens=skips)

    def split(self, output: RoundOutput) -> Iterable[RoundOutput]:
        """What a round gave, in the parts that get events of their own, each to be pushed."""
        if self._splitter is None:
            return (output,)
        self._count(output)
        return self._splitter.split(output)

    def push(self, output: RoundOutput) -> None:
        if self._wants_outputs:
            self._outputs.append(output)
        if self._splitter is None:
            self._count(output)

    def _count(self, output: RoundOutput) -> None:
        if self._options.stats:
            self._stats.push(output)

    def fill(self, choice: ChatChoice | ChatChunkChoice | TextChoice) -> Sequence[RoundOutput]:
        """Tell what was pushed since the last part; with the last part of a choice, its statistics. Returns the rounds
        that the part tells of."""
        if not self._tells:
            return ()
        outputs, self._outputs = self._outputs, []
        if self._options.token_ids:
            choice.token_ids = [token_id for output in outputs for token_id in output.token_ids]
        tells_stats = self._options.stats and choice.finish_reason is not None
        if self._options.origins or tells_stats:
            choice.dspine = dspine = DspineAnswer()
            if self._options.origins:
                dspine.tokens = [origin for output in outputs for origin in self._origins(output)]
            if tells_stats:
                dspine.stats = self._stats.body()
        return outputs

    def _origins(self, output: RoundOutput) -> list[TokenOrigin]:
        return [
            TokenOrigin(text=self._texts.push(token_id), accepted=number < output.accepted_tokens)
            for number, token_id in enumerate(output.token_ids)
        ]
