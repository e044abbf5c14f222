"""A replica's prefix cache by lengths alone: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.sim.workload import Talk
from dspine_cluster.types import CHUNK_GRID_TOKENS


class PrefixStore:
    """Texts up to the end of answers, and system prompts."""

    def __init__(self, pool_tokens: int, max_entries: int) -> None:
        """At most `max_entries` texts; 0 stands for any number: a dense target needs no states."""
        self._pool_tokens = pool_tokens
        self._max_entries = max_entries
        self._entries: OrderedDict[PageKey, int] = OrderedDict()
        self._num_tokens = 0
        self._added: set[PageKey] = set()
        self._removed: set[PageKey] = set()

    def match(self, talk: Talk, turn: int) -> int:
        """Tokens of the prompt that need not be computed."""
        if turn:
            key = talk.key(turn - 1)
            if key in self._entries:
                self._entries.move_to_end(key)
                before = talk.exchanges[turn - 1]
                return _grid(before.prompt_tokens + before.output_tokens)
        if talk.system_key in self._entries:
            self._entries.move_to_end(talk.system_key)
            return _grid(talk.system_tokens)
        return 0

    def put_system(self, talk: Talk, in_use_tokens: int) -> None:
        """A prompt has been computed. `in_use_tokens` are running requests'."""
        self._set(talk.system_key, talk.system_tokens)
        self._trim(in_use_tokens)

    def put(self, talk: Talk, turn: int, in_use_tokens: int) -> None:
        """A turn has ended; its text takes the place of what it went on from."""
        self._set(talk.system_key, talk.system_tokens)
        if turn:
            self._drop(talk.key(turn - 1))
        exchange = talk.exchanges[turn]
        own = exchange.prompt_tokens + exchange.output_tokens - talk.system_tokens
        self._set(talk.key(turn), own)
        self._trim(in_use_tokens)

    def take_events(self) -> tuple[frozenset[PageKey], frozenset[PageKey]]:
        """Keys that came and went since the last time."""
        events = frozenset(self._added), frozenset(self._removed)
        self._added, self._removed = set(), set()
        return events

    def _trim(self, in_use_tokens: int) -> None:
        room = self._pool_tokens - in_use_tokens
        while self._entries and (
            self._num_tokens > room or (self._max_entries and len(self._entries) > self._max_entries)
        ):
            self._drop(next(iter(self._entries)))

    def _set(self, key: PageKey, num_tokens: int) -> None:
        self._drop(key)
        self._entries[key] = num_tokens
        self._num_tokens += num_tokens
        if key in self._removed:
            self._removed.discard(key)
        else:
            self._added.add(key)

    def _drop(self, key: PageKey) -> None:
        num_tokens = self._entries.pop(key, None)
        if num_tokens is None:
            return
        self._num_tokens -= num_tokens
        if key in self._added:
            self._added.discard(key)
        else:
            self._removed.add(key)


def _grid(num_tokens: int) -> int:
    return num_tokens - num_tokens % CHUNK_GRID_TOKENS
