"""Finds tool calls between `<tool_call>` and `</tool_call>` in the text of an answer, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from dspine_cluster.api.answering.answer_events import CallArguments, CallStart, Content, Event, split_certain
from dspine_cluster.api.tool_calling.parameter_types import ParameterTypes
from dspine_cluster.api.tool_calling.tool_call_json import JsonCall
from dspine_cluster.api.tool_calling.tool_call_xml import XmlCall

_OPEN_TAG = "<tool_call>"
_CLOSE_TAG = "</tool_call>"


class CallForm(StrEnum):
    """How a model writes its calls. The value is what a call begins with."""

    JSON = "{"
    XML = "<function="


def call_forms(chat_template: str) -> tuple[CallForm, ...]:
    """The form that a chat template teaches; both where it shows none."""
    if CallForm.XML in chat_template:
        return (CallForm.XML,)
    return (CallForm.JSON,) if '{"name":' in chat_template.replace("\\", "") else tuple(CallForm)


class _State(Enum):
    TEXT = auto()
    OPENED = auto()
    BODY = auto()
    CLOSING = auto()


class ToolCallParser:
    """The events of one answer, the same ones in sum wherever the text is split.

    What breaks the form before the name of the function is known is content, tags included. A call that breaks later
    ends there, and what follows is content. White space around calls is content only between other content.
    """

    def __init__(self, forms: tuple[CallForm, ...], types: ParameterTypes) -> None:
        makers: dict[CallForm, Callable[[], JsonCall | XmlCall]] = {
            CallForm.JSON: JsonCall,
            CallForm.XML: lambda: XmlCall(types),
        }
        self._makers = {form: makers[form] for form in forms}
        self._state = _State.TEXT
        self._body: JsonCall | XmlCall = JsonCall()
        self._held = ""
        self._raw = ""
        """What a call's text is if no call comes of it."""
        self._is_named = False
        self._end = 0
        """Where what is held ends in what the model wrote."""
        self._spaces: list[Content] = []
        """White space that is content if content follows."""
        self._has_content = False
        self._events: list[Event] = []
        self.num_calls = 0

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and none of them is cut off within its arguments."""
        is_cut = self._state is _State.BODY and self._is_named and not self._body.has_whole_arguments
        return self.num_calls > 0 and not is_cut

    def push(self, content: Content) -> list[Event]:
        """What more text makes certain."""
        self._held += content.text
        self._end = content.end
        while self._advance():
            pass
        return self._taken_events()

    def finish(self) -> list[Event]:
        """What was held back, when no more text comes."""
        if self._state is _State.BODY:
            self._events += self._arguments(self._body.finish().arguments)
        if self._state in (_State.OPENED, _State.BODY) and not self._is_named:
            self._content(self._raw, self._held)
        self._content(self._held, "")
        if not self.num_calls:
            self._events += self._spaces
        return self._taken_events()

    def _taken_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _advance(self) -> bool:
        """Whether there may be more to read in what is held."""
        match self._state:
            case _State.TEXT:
                return self._read_text()
            case _State.OPENED:
                return self._choose_form()
            case _State.BODY:
                return self._read_body()
            case _State.CLOSING:
                return self._close()

    def _read_text(self) -> bool:
        before, tag, after = self._held.partition(_OPEN_TAG)
        if not tag:
            before, after = split_certain(before, _OPEN_TAG)
        self._content(before, tag + after)
        self._held = after
        if tag:
            self._raw = tag
            self._is_named = False
            self._state = _State.OPENED
        return bool(tag)

    def _choose_form(self) -> bool:
        body = self._held.lstrip()
        for form, make in self._makers.items():
            if body.startswith(form):
                self._raw += self._held[: -len(body)]
                self._held = body
                self._body = make()
                self._state = _State.BODY
                return True
        if any(form.startswith(body) for form in self._makers):
            return False
        self._content(self._raw, self._held)
        self._state = _State.TEXT
        return True

    def _read_body(self) -> bool:
        if not self._held:
            return False
        step = self._body.push(self._held)
        if not self._is_named:
            self._raw += self._held
        self._held = step.rest or ""
        if step.name is not None:
            self._is_named = True
            self._events.append(CallStart(self.num_calls, step.name))
            self.num_calls += 1
        self._events += self._arguments(step.arguments)
        if step.rest is None:
            return False
        self._state = _State.CLOSING
        if not self._is_named:
            self._content(self._raw.removesuffix(step.rest), step.rest)
            self._state = _State.TEXT
        return True

    def _close(self) -> bool:
        text = self._held.lstrip()
        if text.startswith(_CLOSE_TAG):
            self._held = text.removeprefix(_CLOSE_TAG)
        elif _CLOSE_TAG.startswith(text):
            return False
        self._state = _State.TEXT
        return True

    def _arguments(self, text: str) -> list[Event]:
        return [CallArguments(self.num_calls - 1, text)] if text else []

    def _content(self, text: str, rest: str) -> None:
        """`text` is content; `rest`, which is what follows, is yet to be read."""
        end = self._end - len(rest)
        content = text.rstrip()
        space = text[len(content) :]
        if content:
            if self._has_content or not self.num_calls:
                self._events += self._spaces
            else:
                content = content.lstrip()
            self._events.append(Content(content, end - len(space)))
            self._spaces = []
            self._has_content = True
        if space:
            self._spaces.append(Content(space, end))
