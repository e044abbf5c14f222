"""Traces of conversations: shared system prompts, idle gaps, branches, and thinking that the next turn strips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from math import log
from random import Random

_END_TOKENS = (1, 2)
"""Of a message, as a chat template ends it."""
_START_TOKENS = (3, 4)
"""Of an answer; they end every prompt."""
_FIRST_WORD = 16


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """What a trace is made of. Lengths are tokens, `median_` of log-normal distributions."""

    conversations_per_s: float
    """Start as a Poisson process."""
    duration_s: float
    """Conversations start until then."""
    num_system_prompts: int = 24
    """Their popularity falls as 1 / rank."""
    median_system_tokens: int = 1200
    median_user_tokens: int = 120
    tool_ratio: float = 0.15
    """User turns that carry a document or tool transcript as well."""
    median_tool_tokens: int = 1200
    median_answer_tokens: int = 160
    thinking_ratio: float = 0.3
    """Conversations with thinking: it is generated in each turn, and stripped from the next prompt."""
    median_thinking_tokens: int = 200
    mean_turns: float = 6.0
    """Geometric."""
    max_turns: int = 16
    branch_ratio: float = 0.1
    """Turns after which a second continuation begins from the same text."""
    median_gap_s: float = 6.0
    """Between the end of an answer and the next turn."""
    max_tokens: int = 16_000
    """A conversation ends before its prompt gets longer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what it adds to the text before it, what it is answered, and what follows."""

    conversation: int
    gap_s: float
    """After the end of the answer before it, or after the start of the trace."""
    added_ids: tuple[int, ...]
    """From the end of the previous prompt's messages on: the last answer as the template writes it, and the user's."""
    thinking_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    boundaries: tuple[int, ...]
    """Lengths at which the messages of its prompt end."""
    next: tuple[Turn, ...]

    @property
    def output_ids(self) -> tuple[int, ...]:
        return (*self.thinking_ids, *self.answer_ids, *_END_TOKENS)


def prompt_of(before: tuple[int, ...], turn: Turn) -> tuple[int, ...]:
    """The prompt of a turn; `before` is the text that `text_after` gave for the turn before it."""
    return (*before, *turn.added_ids, *_START_TOKENS)


def text_after(before: tuple[int, ...], turn: Turn) -> tuple[int, ...]:
    """The messages up to the turn's user message; its answer comes with the next turn."""
    return (*before, *turn.added_ids)


def make_conversations(settings: ConversationSettings, random: Random) -> list[Turn]:
    """First turns in order of time; each leads to those that follow it."""
    words = _Words(random)
    lengths = [
        _length(random, settings.median_system_tokens, 0.6) for _ in range(settings.num_system_prompts)
    ]
    prompts = [(*words.take(length), *_END_TOKENS) for length in lengths]
    shares = list(accumulate(1 / rank for rank in range(1, len(prompts) + 1)))
    first_turns: list[Turn] = []
    start_s = 0.0
    for number in count():
        start_s += random.expovariate(settings.conversations_per_s)
        if start_s >= settings.duration_s:
            break
        system = random.choices(prompts, cum_weights=shares)[0]
        num_turns = 1
        while num_turns < settings.max_turns and random.random() >= 1 / settings.mean_turns:
            num_turns += 1
        thinks = random.random() < settings.thinking_ratio
        conversation = _Conversation(settings, random, words, number, thinks)
        first_turns += conversation.turns(system, (len(system),), num_turns, start_s)
    return first_turns


class _Words:
    """Runs of token ids, each from a random start: no two texts share a page by chance."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def take(self, length: int) -> tuple[int, ...]:
        start = self._random.randrange(_FIRST_WORD, 2**30)
        return tuple(range(start, start + length))


class _Conversation:
    """Makes the turns of one conversation and of its branches."""

    def __init__(
        self, settings: ConversationSettings, random: Random, words: _Words, number: int, thinks: bool
    ) -> None:
        self._settings = settings
        self._random = random
        self._words = words
        self._number = number
        self._thinks = thinks

    def turns(
        self, added: tuple[int, ...], boundaries: tuple[int, ...], num_turns: int, gap_s: float
    ) -> Iterator[Turn]:
        """The next turn, unless the text gets too long. `added` is what the template puts before the user's message,
        and ends at the last of `boundaries`."""
        settings, random = self._settings, self._random
        num_user = _length(random, settings.median_user_tokens, 0.8)
        if random.random() < settings.tool_ratio:
            num_user += _length(random, settings.median_tool_tokens, 0.7)
        message = (*self._words.take(num_user), *_END_TOKENS)
        added, boundaries = (*added, *message), (*boundaries, boundaries[-1] + len(message))
        if boundaries[-1] > settings.max_tokens:
            return
        num_thinking = _length(random, settings.median_thinking_tokens, 0.7) if self._thinks else 0
        answer = self._words.take(_length(random, settings.median_answer_tokens, 0.7))
        following: list[Turn] = []
        num_branches = 1 + (random.random() < settings.branch_ratio)
        for _ in range(num_branches if num_turns > 1 else 0):
            said = (*_START_TOKENS, *answer, *_END_TOKENS)
            said_boundaries = (*boundaries, boundaries[-1] + len(said))
            gap = random.lognormvariate(log(settings.median_gap_s), 1.0)
            following += self.turns(said, said_boundaries, num_turns - 1, gap)
        yield Turn(
            self._number, gap_s, added, self._words.take(num_thinking), answer, boundaries, tuple(following)
        )


def _length(random: Random, median: int, sigma: float) -> int:
    return max(8, min(8 * median, round(random.lognormvariate(log(median), sigma))))
