"""From the rounds of one chat answer to its reasoning, text and tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from dspine_cluster.api.answering.answer_events import CallArguments, CallStart, Content, Event
from dspine_cluster.api.answering.reasoning import ReasoningParser, Thinking
from dspine_cluster.api.tool_calling.parameter_types import ParameterTypes
from dspine_cluster.api.tool_calling.tool_calls import CallForm, ToolCallParser
from dspine_cluster.types import FinishReason, RoundOutput, Usage


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the answers to one request are to be read."""

    thinking: Thinking = Thinking.UNDECIDED
    tools: ParameterTypes | None = None
    """None: what looks like a call is text."""
    call_forms: tuple[CallForm, ...] = tuple(CallForm)
    parallel_calls: bool = True
    """False: only the first call of an answer counts."""
    reasoning_end_id: int | None = None
    """The token `</think>`, of tokenizers that have it."""


class AnswerParser:
    """Reads one answer, the same way wherever rounds part it."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._format = answer_format
        self._reasoning = ReasoningParser(answer_format.thinking)
        self._calls = (
            None
            if answer_format.tools is None
            else ToolCallParser(answer_format.call_forms, answer_format.tools)
        )
        self._num_tokens = 0
        self._num_tokens_to_end: int | None = None
        self.finish_reason: str | None = None
        """As OpenAI writes it, once the answer has ended."""
        self.usage = Usage()

    @property
    def reasoning_tokens(self) -> int | None:
        """Output tokens up to the end of the reasoning, its tags included. None where no single token ended it, so
        that they cannot be told from the others."""
        if not self._reasoning.has_reasoning:
            return 0
        return self._num_tokens if self._reasoning.is_reasoning else self._num_tokens_to_end

    def push(self, output: RoundOutput) -> list[Event]:
        """What a round makes certain; with the last one, everything."""
        for token_id in output.token_ids:
            self._num_tokens += 1
            if token_id == self._format.reasoning_end_id and self._num_tokens_to_end is None:
                self._num_tokens_to_end = self._num_tokens
        is_last = output.finish_reason is not None
        events = self._reasoning.push(output.text)
        if is_last:
            events += self._reasoning.finish()
        if self._calls is not None:
            events = self._parted(events, self._calls, is_last)
        if output.finish_reason is not None:
            has_calls = self._calls is not None and self._calls.has_whole_calls
            stopped = output.finish_reason is FinishReason.STOP
            self.finish_reason = "tool_calls" if has_calls and stopped else output.finish_reason.value
        self.usage = output.usage
        return events

    def _parted(self, events: list[Event], calls: ToolCallParser, is_last: bool) -> list[Event]:
        """`events` with the calls taken out of the content."""
        parted: list[Event] = []
        for event in events:
            parted += calls.push(event) if isinstance(event, Content) else [event]
        if is_last:
            parted += calls.finish()
        if self._format.parallel_calls:
            return parted
        return [event for event in parted if not _is_later_call(event)]


def _is_later_call(event: Event) -> bool:
    return isinstance(event, CallStart | CallArguments) and event.index > 0
