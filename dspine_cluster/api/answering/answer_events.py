"""What the text of a chat answer is made of, in the order in which it becomes certain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model says to itself before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text, which stands so in what the model wrote."""

    text: str
    end: int = field(default=0, compare=False)
    """Where it ends there, in characters."""

    @property
    def start(self) -> int:
        """Where it begins there."""
        return self.end - len(self.text)


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; its arguments follow."""

    index: int
    """Of the calls of one answer, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments, as JSON text."""

    index: int
    text: str


Event = Reasoning | Content | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """What is known of one tool call. Without a name: more of the arguments of a call that has begun before."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Merged:
    """Several events in one."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def is_one_text(self) -> bool:
        """Whether it is content, or reasoning, and nothing else."""
        return bool(self.content) != bool(self.reasoning) and not self.calls


def merge(events: Iterable[Event]) -> Merged:
    """Joins the pieces of each kind, and of each call."""
    reasoning: list[str] = []
    content: list[str] = []
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Reasoning(text):
                reasoning.append(text)
            case Content(text):
                content.append(text)
            case CallStart(index, name):
                names[index] = name
                arguments.setdefault(index, [])
            case CallArguments(index, text):
                arguments.setdefault(index, []).append(text)
    calls = [Call(index, names.get(index), "".join(pieces)) for index, pieces in arguments.items()]
    return Merged("".join(reasoning), "".join(content), calls)


def split_certain(text: str, tag: str) -> tuple[str, str]:
    """`text` up to where `tag`, which is not in it, could begin at its end; and the rest."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length], text[-length:]
    return text, ""
