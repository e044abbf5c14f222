"""What a replica tells placement of its cache: which prefixes a request can resume from, as they come and go."""

from __future__ import annotations

import threading

from dspine_cluster.core.page_hash import PageKey


class PrefixEvents:
    """The keys of the pages that end restorable prefixes, and their changes since they were last taken.

    One thread adds and discards; any thread may take. A key that came and went in between is never reported.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: set[PageKey] = set()
        self._added: set[PageKey] = set()
        self._removed: set[PageKey] = set()

    @property
    def present(self) -> set[PageKey]:
        """Every key present now."""
        with self._lock:
            return set(self._present)

    def add(self, key: PageKey) -> None:
        with self._lock:
            assert key not in self._present
            self._present.add(key)
            if key in self._removed:
                self._removed.discard(key)
            else:
                self._added.add(key)

    def discard(self, key: PageKey) -> None:
        with self._lock:
            self._present.remove(key)
            if key in self._added:
                self._added.discard(key)
            else:
                self._removed.add(key)

    def take(self) -> tuple[set[PageKey], set[PageKey]]:
        """(added, removed) since the last call."""
        with self._lock:
            taken = self._added, self._removed
            self._added, self._removed = set(), set()
            return taken
