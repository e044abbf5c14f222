"""Office conversations with JSON tool calls: calls, results, summaries, missing details and talk that needs no tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from dspine_cluster.miniature.data.conversation import (
    Conversation,
    Message,
    Split,
    Tool,
    assistant,
    phrasing,
    user,
)
from dspine_cluster.miniature.data.office import OFFICE_TOOLS, OfficeTool
from dspine_cluster.miniature.data.office_requests import SMALL_REQUESTS
from dspine_cluster.miniature.data.words import first_name

_SYSTEMS = (
    "You are an office assistant.",
    "You help {n} at work.",
    "You are a helpful assistant. Today is {d}.",
    "Assist the team with short answers.",
    "You are the assistant of {n}.",
    "Be brief and friendly.",
    "Today is {d}. You work for {n}.",
    "Help the user with the tools you have.",
    "You are a small assistant in an office.",
    "{n} is your boss. Answer in a friendly way.",
    "It is {d}. Help {n} with the work of the day.",
    "Answer in one sentence.",
    "Use the tools when they help.",
    "You work in the office of {n}. Today is {d}.",
    "You help the team of {n} with short answers.",
    "Ask when a detail is missing.",
    "Please be kind and clear.",
)
_MISSING = (
    "Which {p} should I use?",
    "What {p} do you want?",
    "I can do that. What is the {p}?",
    "Please tell me the {p}.",
    "Sure. Which {p}?",
    "I still need the {p}.",
)
_GIVEN = (
    "{v}", "{v}, please.", "The {p} is {v}.", "Use {v}.", "It should be {v}.", "Let us say {v}.",
    "{v} is the {p}.", "Take {v}.", "Oh, sorry. {v}.", "I want {v}.", "Make it {v}.", "Sorry, I forgot. It is {v}.",
    "{v} would be good.", "For the {p} use {v}.", "Please take {v} as the {p}.", "I think {v} is best.",
    "My {p} is {v}, thanks.",
)  # fmt: skip
_THANKS = (
    "Thanks!",
    "Great, thank you.",
    "Perfect.",
    "That is all, thanks.",
    "Wonderful, bye.",
    "Good work.",
    "Thank you very much!",
    "That helps a lot.",
    "Nice, thanks for the help.",
    "Very good, that is all.",
    "Thanks, that was quick.",
    "Well done!",
    "Okay, thank you. Bye.",
    "You are a great help.",
    "This is all I need. Thank you!",
    "Super, thanks a lot.",
    "I thank you.",
)
_WELCOME = (
    "You are welcome!",
    "Glad to help. Just ask if you need more.",
    "Any time. Have a good day!",
    "My pleasure.",
)


def call_message(name: str, arguments: dict[str, Any]) -> Message:
    """An assistant message with one tool call and no text."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def expected_call(name: str, arguments: dict[str, Any]) -> str:
    """The canonical JSON that a tool-call check compares."""
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, ensure_ascii=False)


def _chosen_tools(rng: Random, needed: list[OfficeTool]) -> tuple[Tool, ...]:
    others = [t for t in OFFICE_TOOLS if t not in needed]
    tools = needed + rng.sample(others, k=max(0, rng.choice((1, 2, 2, 3)) - len(needed)))
    rng.shuffle(tools)
    return tuple(tool.definition for tool in tools)


def _system(rng: Random, split: Split) -> list[Message]:
    if rng.random() < 0.4:
        return []
    text = phrasing(rng, _SYSTEMS, split).format(
        n=first_name(rng), d=rng.choice(("Monday", "Friday", "Tuesday"))
    )
    return [{"role": "system", "content": text}]


def _request(rng: Random, split: Split, tool: OfficeTool) -> tuple[list[Message], str]:
    """User request, call, result and summary; and what the call must be."""
    arguments = tool.draw(rng)
    question = phrasing(rng, tool.requests, split).format(**arguments)
    messages = [user(question), call_message(tool.name, arguments)]
    result = tool.respond(rng)
    messages.append({"role": "tool", "content": json.dumps(result, ensure_ascii=False)})
    summary = rng.choice(tool.summaries).format(**arguments, **result)
    messages.append(assistant(summary))
    return messages, expected_call(tool.name, arguments)


def _missing(rng: Random, split: Split, tool: OfficeTool) -> list[Message]:
    """A request without one detail, a question back, the detail, and the call."""
    arguments = tool.draw(rng)
    vague, parameter = rng.choice(tool.vague)
    word = parameter.replace("_", " ")
    return [
        user(vague.format(**arguments)),
        assistant(rng.choice(_MISSING).format(p=word)),
        user(phrasing(rng, _GIVEN, split).format(v=arguments[parameter], p=word)),
        call_message(tool.name, arguments),
    ]


def _single(rng: Random, split: Split) -> Conversation:
    tool = rng.choice(OFFICE_TOOLS)
    messages, expected = _request(rng, split, tool)
    end = 2 if rng.random() < 0.5 else 4
    return Conversation(
        tuple(_system(rng, split) + messages[:end]),
        _chosen_tools(rng, [tool]),
        expected if end == 2 else None,
    )


def _double(rng: Random, split: Split) -> Conversation:
    first, second = rng.sample(OFFICE_TOOLS, k=2)
    opening, _ = _request(rng, split, first)
    closing, expected = _request(rng, split, second)
    end = 2 if rng.random() < 0.5 else 4
    messages = _system(rng, split) + opening + closing[:end]
    return Conversation(tuple(messages), _chosen_tools(rng, [first, second]), expected if end == 2 else None)


def _asked_back(rng: Random, split: Split) -> Conversation:
    tool = rng.choice(OFFICE_TOOLS)
    messages = _missing(rng, split, tool)
    call = messages[-1]["tool_calls"][0]["function"]
    end = 2 if rng.random() < 0.3 else 4
    expected = expected_call(call["name"], call["arguments"]) if end == 4 else None
    return Conversation(tuple(_system(rng, split) + messages[:end]), _chosen_tools(rng, [tool]), expected)


def _thanked(rng: Random, split: Split) -> Conversation:
    tool = rng.choice(OFFICE_TOOLS)
    messages, _ = _request(rng, split, tool)
    messages += [user(phrasing(rng, _THANKS, split)), assistant(rng.choice(_WELCOME))]
    return Conversation(tuple(_system(rng, split) + messages), _chosen_tools(rng, [tool]))


def _no_tool(rng: Random, split: Split) -> Conversation:
    question, answers = phrasing(rng, SMALL_REQUESTS, split)
    messages = [*_system(rng, split), user(question), assistant(rng.choice(answers))]
    return Conversation(tuple(messages), _chosen_tools(rng, []))


Kind = Callable[[Random, Split], Conversation]
_KINDS: tuple[tuple[Kind, float], ...] = (
    (_single, 0.5),
    (_double, 0.2),
    (_asked_back, 0.15),
    (_thanked, 0.08),
    (_no_tool, 0.07),
)


def conversation(rng: Random, split: Split) -> Conversation:
    """One office conversation with one to three tools on offer."""
    kinds, weights = zip(*_KINDS, strict=True)
    kind: Kind = rng.choices(kinds, weights)[0]
    return kind(rng, split)
