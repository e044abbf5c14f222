"""Who comes to a fleet: conversations that are the same whatever serves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import cos, log, pi
from random import Random

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.sim.scenario import LoadConfig, Scenario, share_at
from dspine_cluster.types import PAGE_TOKENS

TOKENS_PER_CONVERSATION = 1 << 15
_SYSTEM_IDS = 1 << 30
_NO_KEY = b""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn of a conversation, by its lengths."""

    gap_s: float
    """After the answer before it."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation."""

    number: int
    starts_at_s: float
    kind: int
    system: int
    system_tokens: int
    exchanges: tuple[Exchange, ...]

    def text_ids(self, start: int, end: int) -> tuple[int, ...]:
        """The tokens at positions from `start` to `end`; of system prompts everybody has the same."""
        shared = range(_SYSTEM_IDS + self.system * TOKENS_PER_CONVERSATION + start, _SYSTEM_IDS * 2)
        first = min(end, self.system_tokens)
        own = self.number * TOKENS_PER_CONVERSATION
        return (*shared[: max(0, first - start)], *range(own + max(start, first), own + end))

    def keys(self, turn: int) -> list[PageKey]:
        """Of the prompt's pages that end what may be cached; the others hold nothing that is looked up."""
        keys = [_NO_KEY] * (self.exchanges[turn].prompt_tokens // PAGE_TOKENS)
        keys[self.system_tokens // PAGE_TOKENS - 1] = self.system_key
        if turn:
            before = self.exchanges[turn - 1]
            keys[(before.prompt_tokens + before.output_tokens) // PAGE_TOKENS - 1] = self.key(turn - 1)
        return keys

    @property
    def system_key(self) -> PageKey:
        return b"s%d" % self.system

    def key(self, turn: int) -> PageKey:
        """Of the text up to the end of a turn's answer."""
        return b"%d/%d" % (self.number, turn)


def make_talks(scenario: Scenario, seed: int) -> Iterator[Talk]:
    """Conversations in order of their start, as they are asked for."""
    random = Random(seed)
    config, load = scenario.conversations, scenario.load
    systems = [
        max(PAGE_TOKENS * 4, _length(random, config.median_system_tokens, config.spread))
        for _ in range(config.num_system_prompts)
    ]
    popularity = list(accumulate(1 / rank for rank in range(1, len(systems) + 1)))
    most = load.conversations_per_s * (1 + load.amplitude) * max((1.0, *(b.factor for b in load.bursts)))
    at_s, number = 0.0, 0
    while True:
        at_s += random.expovariate(most)
        if at_s >= scenario.duration_s:
            return
        if random.random() * most >= rate_at(load, at_s):
            continue
        own = Random(random.getrandbits(64))
        shares = [share_at(kind.shares, at_s) for kind in scenario.kinds]
        kind = own.choices(range(len(shares)), shares)[0]
        system = own.choices(range(len(systems)), cum_weights=popularity)[0]
        exchanges = _exchanges(scenario, kind, systems[system], own)
        yield Talk(number, at_s, kind, system, systems[system], exchanges)
        number += 1


def rate_at(load: LoadConfig, at_s: float) -> float:
    """Conversations a second."""
    rate = load.conversations_per_s * (1 - load.amplitude * cos(2 * pi * at_s / load.period_s))
    for burst in load.bursts:
        if burst.at_s <= at_s < burst.at_s + burst.for_s:
            rate *= burst.factor
    return rate


def _exchanges(scenario: Scenario, kind: int, system_tokens: int, random: Random) -> tuple[Exchange, ...]:
    config = scenario.conversations
    exchanges: list[Exchange] = []
    num_tokens, gap_s = system_tokens, 0.0
    while True:
        prompt = num_tokens + _length(random, config.median_user_tokens, config.spread)
        output = _length(random, scenario.kinds[kind].median_output_tokens, config.spread)
        num_tokens = prompt + output
        if num_tokens > min(config.max_tokens, TOKENS_PER_CONVERSATION) and exchanges:
            break
        exchanges.append(Exchange(gap_s, prompt, output))
        if random.random() < 1 / config.mean_turns:
            break
        gap_s = random.lognormvariate(log(config.median_gap_s), 1.0)
    return tuple(exchanges)


def _length(random: Random, median: int, spread: float) -> int:
    return max(PAGE_TOKENS, min(8 * median, round(random.lognormvariate(log(median), spread))))
