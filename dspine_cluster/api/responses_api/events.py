"""The output items of a response and the events that tell of them, from what becomes certain of an answer."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import count
from typing import Any

from dspine_cluster.api.answering.answer_events import CallArguments, CallStart, Content, Event, Reasoning
from dspine_cluster.api.bodies import ChosenLogprob
from dspine_cluster.api.responses_api.bodies import (
    ContentPart,
    EventLogprob,
    EventTopLogprob,
    OutputItem,
    ResponseEvent,
    Status,
)
from dspine_cluster.api.responses_api.content_logprobs import ContentLogprobs

_TEXT_EVENTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""How the events of an item's text are called, by the item's type."""


class OutputWriter:
    """Writes items one after the other: reasoning, messages, function calls."""

    def __init__(self, logprobs: ContentLogprobs | None = None) -> None:
        self.logprobs = logprobs
        """Where texts are to have them; whoever pushes events pushes the tokens that made them here before."""
        self.items: list[OutputItem] = []
        self._is_open = False
        self._numbers = count()

    def event(self, kind: str, **fields: Any) -> ResponseEvent:
        """The next event in order."""
        return ResponseEvent(type=f"response.{kind}", sequence_number=next(self._numbers), **fields)

    def push(self, events: Iterable[Event]) -> list[ResponseEvent]:
        """The events of what a round made certain; pieces of one text in one."""
        told: list[ResponseEvent] = []
        for event in events:
            match event:
                case Reasoning(text):
                    told += self._open("reasoning", summary=[], content=[])
                    self._add_text(told, text)
                case Content(text):
                    told += self._open("message", role="assistant", content=[])
                    self._add_text(told, text)
                    if self.logprobs is not None:
                        self._add_logprobs(told[-1], self.logprobs.take(event))
                case CallStart(_, name):
                    told += self._close()
                    told += self._open("function_call", call_id=_new_id("call"), name=name, arguments="")
                case CallArguments(_, text):
                    self.items[-1].arguments += text
                    if not _goes_on(told, kind := "function_call_arguments.delta", text):
                        told.append(self._of_item(kind, delta=text))
        return told

    def finish(self, status: Status) -> list[ResponseEvent]:
        """The last events. `status` is the last item's; an answer without any text is an empty message."""
        told = [] if self.items else self._open("message", role="assistant", content=[])
        return told + self._close(status)

    def _open(self, kind: str, **fields: Any) -> list[ResponseEvent]:
        """An item of the kind, if the one that is being written is another."""
        if self._is_open and self.items[-1].type == kind:
            return []
        told = self._close()
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item = OutputItem.model_validate(
            {"id": _new_id(prefix), "type": kind, "status": "in_progress", **fields}
        )
        self.items.append(item)
        self._is_open = True
        told.append(self._item_event("output_item.added"))
        if kind in _TEXT_EVENTS:
            item.content.append(_part(kind))
            told.append(self._of_part("content_part.added", part=_part(kind)))
        return told

    def _add_text(self, told: list[ResponseEvent], text: str) -> None:
        item = self.items[-1]
        item.content[0].text += text
        kind = f"{_TEXT_EVENTS[item.type]}.delta"
        if not _goes_on(told, kind, text):
            fields: dict[str, Any] = {"logprobs": []} if item.type == "message" else {}
            told.append(self._of_part(kind, delta=text, **fields))

    def _add_logprobs(self, delta: ResponseEvent, entries: list[ChosenLogprob]) -> None:
        """Add those of the text that was added last, of which `delta` tells."""
        self.items[-1].content[0].logprobs += entries
        delta.logprobs = [*(delta.logprobs or []), *_of_event(entries)]

    def _close(self, status: Status = "completed") -> list[ResponseEvent]:
        """End the item that is being written, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item.status = status
        told = []
        if item.type == "function_call":
            told.append(
                self._of_item("function_call_arguments.done", name=item.name, arguments=item.arguments)
            )
        else:
            part = item.content[0]
            fields: dict[str, Any] = {"logprobs": _of_event(part.logprobs)} if item.type == "message" else {}
            told.append(self._of_part(f"{_TEXT_EVENTS[item.type]}.done", text=part.text, **fields))
            told.append(self._of_part("content_part.done", part=part.model_copy(deep=True)))
        return [*told, self._item_event("output_item.done")]

    def _item_event(self, kind: str) -> ResponseEvent:
        item = self.items[-1].model_copy(deep=True)
        return self.event(kind, output_index=len(self.items) - 1, item=item)

    def _of_item(self, kind: str, **fields: Any) -> ResponseEvent:
        return self.event(kind, output_index=len(self.items) - 1, item_id=self.items[-1].id, **fields)

    def _of_part(self, kind: str, **fields: Any) -> ResponseEvent:
        return self._of_item(kind, content_index=0, **fields)


def _part(kind: str) -> ContentPart:
    if kind == "reasoning":
        return ContentPart(type="reasoning_text", text="")
    return ContentPart(type="output_text", text="", annotations=[], logprobs=[])


def _goes_on(told: list[ResponseEvent], kind: str, text: str) -> bool:
    """Whether the last event tells of the text before this one; then it gets this, too."""
    if not told or told[-1].type != f"response.{kind}":
        return False
    told[-1].delta += text
    return True


def _of_event(entries: Iterable[ChosenLogprob]) -> list[EventLogprob]:
    return [
        EventLogprob(
            token=entry.token,
            logprob=entry.logprob,
            top_logprobs=[
                EventTopLogprob(token=top.token, logprob=top.logprob) for top in entry.top_logprobs
            ],
        )
        for entry in entries
    ]


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
