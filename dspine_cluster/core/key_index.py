"""Which replicas hold which cached prefix: looked up by key, never by asking every replica."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from random import Random

from dspine_cluster.core.page_hash import PageKey


class KeyIndex:
    """Key of a page that ends a restorable prefix -> the replicas that hold it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._holders: dict[PageKey, list[str]] = {}
        self._keys: dict[str, set[PageKey]] = {}

    def __len__(self) -> int:
        """Different keys that are held somewhere."""
        return len(self._holders)

    def num_keys(self, replica_id: str) -> int:
        return len(self._keys.get(replica_id, ()))

    def add(self, replica_id: str, keys: Iterable[PageKey]) -> None:
        held = self._keys.setdefault(replica_id, set())
        for key in keys:
            if key not in held:
                held.add(key)
                self._holders.setdefault(key, []).append(replica_id)

    def remove(self, replica_id: str, keys: Iterable[PageKey]) -> None:
        """Keys that the replica does not hold are passed over."""
        held = self._keys.get(replica_id, set())
        for key in keys:
            if key in held:
                held.remove(key)
                self._remove_holder(replica_id, key)

    def drop(self, replica_id: str) -> None:
        """Forget everything that a replica holds."""
        for key in self._keys.pop(replica_id, ()):
            self._remove_holder(replica_id, key)

    def deepest(self, keys: Sequence[PageKey], limit: int) -> dict[str, int]:
        """The replicas that hold some of a prompt's prefixes, each with the pages of its longest, longest first.

        At most `limit` replicas; of those that hold equally much, some at random. `keys[i]` ends page i.
        """
        found: dict[str, int] = {}
        last: list[str] | None = None
        held = list(map(self._holders.get, reversed(keys)))
        numbers = compress(range(len(keys), 0, -1), held)
        for num_pages, holders in zip(numbers, filter(None, held), strict=True):
            if holders == last:
                continue
            last = holders
            for replica_id in self._some(holders, limit):
                found.setdefault(replica_id, num_pages)
                if len(found) == limit:
                    return found
        return found

    def depth(self, replica_id: str, keys: Sequence[PageKey]) -> int:
        """Pages of the longest of a prompt's prefixes that one replica holds."""
        held = self._keys.get(replica_id)
        if not held:
            return 0
        return next(compress(range(len(keys), 0, -1), map(held.__contains__, reversed(keys))), 0)

    def _some(self, holders: list[str], limit: int) -> list[str]:
        """All, or where they are many `limit` neighbours from a random place on."""
        if len(holders) <= limit:
            return holders
        start = self._random.randrange(len(holders))
        return (holders[start : start + limit] + holders[:limit])[:limit]

    def _remove_holder(self, replica_id: str, key: PageKey) -> None:
        holders = self._holders[key]
        holders.remove(replica_id)
        if not holders:
            del self._holders[key]
