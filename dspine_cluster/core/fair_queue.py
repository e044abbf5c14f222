"""Whose request is served next where several clients wait.

Every client has a counter of the tokens that it was served, divided by its share, and the one with the lowest goes
first: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with the
virtual time of start-time fair queueing. A client that comes after a pause is lifted to the counter of whoever was
served last: nobody saves up what was not asked for. While two clients always wait, what they were served over their
shares differs by no more than what one of them may be given between two choices.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

T = TypeVar("T")

_FORGET_AT = 4096
"""Idle clients are forgotten beyond so many."""


class FairShares:
    """What every client was served."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._share: dict[str, float] = {}
        self._num_present: dict[str, int] = {}
        """Requests that wait, by client; none has zero."""
        self._floor = 0.0
        """The lowest counter of those that waited when one was last served."""

    def enter(self, client: str, share: float = 1.0) -> None:
        """A request of `client` begins to wait. `share`, above 0, is what it is entitled to beside others."""
        assert share > 0.0
        self._share[client] = share
        if client not in self._num_present:
            self._served[client] = max(self._served.get(client, 0.0), self._floor)
            self._num_present[client] = 0
            if len(self._served) > _FORGET_AT:
                self._forget()
        self._num_present[client] += 1

    def leave(self, client: str) -> None:
        """A request of `client` waits no more."""
        self._floor = max(self._floor, min(self._served[present] for present in self._num_present))
        self._num_present[client] -= 1
        if self._num_present[client] == 0:
            del self._num_present[client]

    def charge(self, client: str, num_tokens: int) -> None:
        """Tokens were computed for `client`, prompt or output."""
        if client in self._served:
            self._served[client] += num_tokens / self._share[client]

    def served(self, client: str) -> float:
        """Tokens over share; only differences mean something."""
        return self._served.get(client, self._floor)

    def share(self, client: str) -> float:
        return self._share.get(client, 1.0)

    def _forget(self) -> None:
        """Drop clients that would begin at the floor anyway."""
        for client in [c for c, served in self._served.items() if served <= self._floor]:
            if client not in self._num_present:
                del self._served[client], self._share[client]


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    order: tuple[int, int]
    cost_tokens: int
    item: T


class FairQueue(Generic[T]):
    """What waits. Iterating gives it in the order in which it is to be served: clients by what they were served, each
    client's own requests by the order that they were given. With one client that is the order given."""

    def __init__(self) -> None:
        self.shares = FairShares()
        self._lines: dict[str, list[_Entry[T]]] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[T]:
        """Looks ahead as if each was charged its cost."""
        shares = self.shares
        turns = [(shares.served(client), position, client, 0) for position, client in enumerate(self._lines)]
        heapify(turns)
        while turns:
            served, position, client, index = turns[0]
            line = self._lines[client]
            yield line[index].item
            if index + 1 < len(line):
                served += line[index].cost_tokens / shares.share(client)
                heapreplace(turns, (served, position, client, index + 1))
            else:
                heappop(turns)

    def add(
        self, item: T, *, client: str, order: tuple[int, int], cost_tokens: int, share: float = 1.0
    ) -> None:
        """`order` is among the client's own, smaller first, and all are different."""
        self.shares.enter(client, share)
        entry = _Entry(order, cost_tokens, item)
        insort(self._lines.setdefault(client, []), entry, key=lambda entry: entry.order)

    def remove(self, item: T, client: str) -> None:
        """It waits no more; charge the client apart, if it is served."""
        line = self._lines[client]
        del line[next(index for index, entry in enumerate(line) if entry.item is item)]
        if not line:
            del self._lines[client]
        self.shares.leave(client)
