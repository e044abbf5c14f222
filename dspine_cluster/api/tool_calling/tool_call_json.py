"""A tool call as `{"name": NAME, "arguments": {...}}`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_MAX_DEPTH = 128
_OUTSIDE_STRINGS = re.compile(r"[ \t\r\n:,\-+0-9.eEtrufalsn]*")
_INSIDE_STRINGS = re.compile(r'[^"\\]*')
_BRACKETS = {"{": "}", "[": "]"}
_HEAD = re.compile(
    r'\s*{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"arguments"\s*:\s*(?={)'.replace(r"\s", r"[ \t\r\n]"),
    re.DOTALL,
)


@dataclass(slots=True)
class CallStep:
    """What a piece of text gave a call."""

    name: str | None = None
    """Of the function, once."""
    arguments: str = ""
    """More of the arguments, as JSON text."""
    rest: str | None = None
    """The text after the call, which has ended. If no name was given until then, it is none."""


class JsonScanner:
    """Finds the end of a JSON object or array as its text comes. What stands between strings and brackets is only
    checked for characters that JSON cannot have there."""

    def __init__(self, open_bracket: str = "") -> None:
        self._closing = [_BRACKETS[bracket] for bracket in open_bracket]
        self._in_string = False
        self._is_escaped = False
        self.is_open = True
        """Whether more text is needed."""
        self.is_broken = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        position = 0
        while self.is_open and position < len(text):
            read = self._string if self._in_string else self._structure
            position = read(text, position)
        return position

    def _string(self, text: str, position: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return position + 1
        position = _end(_INSIDE_STRINGS, text, position)
        if position < len(text):
            self._in_string = text[position] == "\\"
            self._is_escaped = self._in_string
            position += 1
        return position

    def _structure(self, text: str, position: int) -> int:
        position = _end(_OUTSIDE_STRINGS, text, position)
        if position == len(text):
            return position
        char = text[position]
        if char == '"' and self._closing:
            self._in_string = True
        elif char in _BRACKETS and len(self._closing) < _MAX_DEPTH:
            self._closing.append(_BRACKETS[char])
        elif self._closing and char == self._closing[-1]:
            self._closing.pop()
            self.is_open = bool(self._closing)
        else:
            self.is_open = False
            self.is_broken = True
            return position
        return position + 1


class JsonCall:
    """Streams the arguments where the name comes first; any other order of keys comes as a whole."""

    def __init__(self) -> None:
        self._head: str | None = ""
        self._scanner = JsonScanner()
        self._is_in_arguments = False

    def push(self, text: str) -> CallStep:
        """Takes more text; none after the end."""
        if self._head is None:
            return self._stream(text)
        self._head += text
        match = _HEAD.match(self._head)
        name = _loaded(match[1]) if match else None
        if match is None or not isinstance(name, str):
            return self._whole(self._head, text)
        arguments = self._head[match.end() :]
        self._head = None
        self._scanner = JsonScanner()
        self._is_in_arguments = True
        step = self._stream(arguments)
        step.name = name
        return step

    @property
    def has_whole_arguments(self) -> bool:
        """Whether the arguments have ended, though the call may not have."""
        return self._head is None and not self._is_in_arguments

    def finish(self) -> CallStep:
        """Nothing is held back but what is no call."""
        return CallStep()

    def _stream(self, text: str) -> CallStep:
        step = CallStep()
        if self._is_in_arguments:
            end = self._scanner.push(text)
            step.arguments, text = text[:end], text[end:]
            if self._scanner.is_broken:
                step.rest = text
            if self._scanner.is_open or self._scanner.is_broken:
                return step
            self._is_in_arguments = False
            self._scanner = JsonScanner("{")
        end = self._scanner.push(text)
        if not self._scanner.is_open:
            step.rest = text[end:]
        return step

    def _whole(self, head: str, text: str) -> CallStep:
        end = self._scanner.push(text)
        if self._scanner.is_open:
            return CallStep()
        rest = text[end:]
        call = None if self._scanner.is_broken else _loaded(head[: len(head) - len(rest)])
        if not isinstance(call, dict):
            return CallStep(rest=rest)
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _loaded(arguments)
        if not (isinstance(name, str) and name and isinstance(arguments, dict)):
            return CallStep(rest=rest)
        return CallStep(name, json.dumps(arguments, ensure_ascii=False), rest)


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None, "the pattern matches nothing, too"
    return match.end()


def _loaded(text: str) -> object:
    """The value, or None where `text` is no JSON."""
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value
