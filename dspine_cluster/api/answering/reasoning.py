"""Parts reasoning between `<think>` and `</think>` from the answer that follows, as the text comes.

The line ends at the borders belong to the markup: chat templates write them again around what they get.
"""

from __future__ import annotations

from enum import Enum, auto

from dspine_cluster.api.answering.answer_events import Content, Event, Reasoning, split_certain

_OPEN_TAG = "<think>"
_CLOSE_TAG = "</think>"


class Thinking(Enum):
    """How a prompt leaves the reasoning of the answer that it begins."""

    OPEN = auto()
    """The answer begins inside of it."""
    CLOSED = auto()
    """The answer has none."""
    UNDECIDED = auto()
    """The answer may begin with the tag."""

    @classmethod
    def after(cls, prompt: str) -> Thinking:
        """What a rendered prompt leaves."""
        end = prompt.rstrip()
        if end.endswith(_OPEN_TAG):
            return cls.OPEN
        return cls.CLOSED if end.endswith(_CLOSE_TAG) else cls.UNDECIDED


class _State(Enum):
    START = auto()
    REASONING = auto()
    CLOSED = auto()
    CONTENT = auto()


class ReasoningParser:
    """The events of one answer, the same ones in sum wherever the text is split. Tags in the answer itself are text."""

    def __init__(self, thinking: Thinking) -> None:
        self._is_open = thinking is Thinking.OPEN
        self._state = _State.CONTENT if thinking is Thinking.CLOSED else _State.START
        self._held = ""
        self._num_chars = 0
        self._has_text = False
        self.has_reasoning = self._is_open
        """Whether the answer begins with reasoning, be it empty."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the answer so far is nothing else."""
        return self._state is _State.REASONING or (self._is_open and self._state is _State.START)

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""
        self._num_chars += len(text)
        if self._state is _State.CONTENT:
            return [self._content(text)] if text else []
        self._held += text
        events: list[Event] = []
        if self._state is _State.START:
            self._start()
        if self._state is _State.REASONING:
            events += self._reason()
        if self._state is _State.CLOSED and (content := self._held.lstrip("\n")):
            self._state = _State.CONTENT
            self._held = content
        if self._state is _State.CONTENT and self._held:
            events.append(self._content(self._held))
            self._held = ""
        return events

    def finish(self) -> list[Event]:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        if self._state is _State.CLOSED or not held:
            return []
        return [Reasoning(held) if self.is_reasoning else self._content(held)]

    def _content(self, text: str) -> Content:
        """All that is there from where the content, or what is new of it, begins."""
        return Content(text, self._num_chars)

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(_OPEN_TAG):
            self._state = _State.REASONING
            self.has_reasoning = True
            self._held = text.removeprefix(_OPEN_TAG)
        elif not _OPEN_TAG.startswith(text):
            self._state = _State.REASONING if self._is_open else _State.CONTENT

    def _reason(self) -> list[Event]:
        if not self._has_text:
            self._held = self._held.lstrip("\n")
        before, tag, after = self._held.partition(_CLOSE_TAG)
        if tag:
            self._state = _State.CLOSED
            self._held = after
            reasoning = before.rstrip("\n")
        else:
            certain, _ = split_certain(before, _CLOSE_TAG)
            reasoning = certain.rstrip("\n")
            self._held = before[len(reasoning) :]
        self._has_text = self._has_text or bool(reasoning)
        return [Reasoning(reasoning)] if reasoning else []
