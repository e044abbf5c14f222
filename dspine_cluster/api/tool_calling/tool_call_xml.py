"""A tool call as `<function=NAME><parameter=KEY>VALUE</parameter></function>`."""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from dspine_cluster.api.answering.answer_events import split_certain
from dspine_cluster.api.tool_calling.parameter_types import STRING, ParameterTypes, json_text
from dspine_cluster.api.tool_calling.tool_call_json import CallStep

_FUNCTION_TAG = "<function="
_FUNCTION_END = "</function>"
_PARAMETER_TAG = "<parameter="
_PARAMETER_END = "</parameter>"
_CALL_END = "</tool_call>"
_AFTER_PARAMETER = (_PARAMETER_TAG, _FUNCTION_END, _CALL_END)
_CLOSED_PARAMETER = re.compile(r"</parameter>\s*")
_NAME = re.compile(r"([^<>\n]*)(.?)", re.DOTALL)


class _State(Enum):
    FUNCTION = auto()
    BETWEEN = auto()
    VALUE = auto()


class _MalformedError(Exception):
    """The text is no call."""


class XmlCall:
    """Streams the values of string parameters; others come as a whole. A value ends only where markup of the call
    follows, so that it may hold the closing tag. The line ends around it belong to the markup."""

    def __init__(self, types: ParameterTypes) -> None:
        self._parameter_types = types
        self._state = _State.FUNCTION
        self._held = ""
        self._function = ""
        self._num_parameters = 0
        self._types = STRING
        self._is_value_started = False
        self._num_searched = 0
        """Characters of what is held in which no value ends."""

    @property
    def has_whole_arguments(self) -> bool:
        """They end with the call."""
        return False

    def push(self, text: str) -> CallStep:
        """Takes more text; none after the end."""
        self._held += text
        step = CallStep()
        try:
            while step.rest is None and self._advance(step):
                pass
        except _MalformedError:
            step.rest = self._held
        return step

    def finish(self) -> CallStep:
        """What is held back of a value, when no more text comes. The arguments stay unfinished."""
        step = CallStep()
        if self._state is _State.VALUE:
            closed = [
                match for match in _CLOSED_PARAMETER.finditer(self._held) if match.end() == len(self._held)
            ]
            if closed:
                self._end_value(step, closed[0])
            else:
                step.arguments = _escaped(self._held) if self._types == STRING else self._held
        return step

    def _advance(self, step: CallStep) -> bool:
        """Whether there may be more to read in what is held."""
        match self._state:
            case _State.FUNCTION:
                if (name := self._named(_FUNCTION_TAG)) is None:
                    return False
                step.name = self._function = name
                self._state = _State.BETWEEN
                return True
            case _State.BETWEEN:
                return self._between(step)
            case _State.VALUE:
                return self._value(step)

    def _named(self, tag: str) -> str | None:
        """The name in a tag that opens, which is then read; None where it goes on."""
        if not self._held.startswith(tag):
            if tag.startswith(self._held):
                return None
            raise _MalformedError
        match = _NAME.match(self._held, len(tag))
        assert match is not None, "the pattern matches nothing, too"
        if not match[2]:
            return None
        name = match[1].strip()
        if match[2] != ">" or not name:
            raise _MalformedError
        self._held = self._held[match.end() :]
        return name

    def _between(self, step: CallStep) -> bool:
        self._held = self._held.lstrip()
        for tag in (_FUNCTION_END, _CALL_END):
            if self._held.startswith(tag):
                step.arguments += "}" if self._num_parameters else "{}"
                step.rest = self._held.removeprefix(_FUNCTION_END)
                return False
            if tag.startswith(self._held):
                return False
        key = self._named(_PARAMETER_TAG)
        if key is None:
            return False
        self._types = self._parameter_types.of(self._function, key)
        step.arguments += ", " if self._num_parameters else "{"
        step.arguments += json.dumps(key, ensure_ascii=False) + ": "
        step.arguments += '"' if self._types == STRING else ""
        self._num_parameters += 1
        self._is_value_started = False
        self._state = _State.VALUE
        return True

    def _value(self, step: CallStep) -> bool:
        if not self._is_value_started and self._held:
            self._held = self._held.removeprefix("\n")
            self._is_value_started = True
        certain, _ = split_certain(self._held, _PARAMETER_END)
        for match in _CLOSED_PARAMETER.finditer(self._held, self._num_searched):
            if self._held.startswith(_AFTER_PARAMETER, match.end()):
                self._end_value(step, match)
                return True
            following = self._held[match.end() : match.end() + len(_CALL_END)]
            if any(tag.startswith(following) for tag in _AFTER_PARAMETER):
                certain = self._held[: match.start()]
                break
        if self._types == STRING:
            certain = certain.removesuffix("\n")
            step.arguments += _escaped(certain)
            self._held = self._held[len(certain) :]
        else:
            self._num_searched = len(certain)
        return False

    def _end_value(self, step: CallStep, closed: re.Match[str]) -> None:
        value = self._held[: closed.start()].removesuffix("\n")
        step.arguments += f'{_escaped(value)}"' if self._types == STRING else json_text(value, self._types)
        self._held = self._held[closed.end() :]
        self._num_searched = 0
        self._state = _State.BETWEEN


def _escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
