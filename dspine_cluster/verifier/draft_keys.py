"""The keys under which drafters share pages of draft context."""

from __future__ import annotations

from collections.abc import Callable

from dspine_cluster.core.page_hash import PageKey, page_keys
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest

RootOf = Callable[[GenerateRequest], PageKey]
"""The root of a request's draft pages; see `core.page_hash`."""


class DraftKeys:
    """Keys of sessions' full pages, kept from one attachment to the next so that each page is hashed once."""

    def __init__(self, root_of: RootOf | None) -> None:
        """Without `root_of` no page has a key, and drafters keep nothing for others."""
        self._root_of = root_of
        self._keys: dict[int, list[PageKey]] = {}

    def keys_of(self, session: Session) -> list[PageKey]:
        """Keys of the full pages whose features exist or, in prefill, will soon."""
        if self._root_of is None:
            return []
        num_tokens = len(session.tokens) if session.phase is Phase.PREFILL else session.num_computed
        num_pages = num_tokens // PAGE_TOKENS
        known = self._keys.get(session.uid, [])
        if len(known) < num_pages:
            tokens = session.tokens[: num_pages * PAGE_TOKENS]
            known = self._keys[session.uid] = page_keys(tokens, self._root_of(session.request), known)
        return known[:num_pages]

    def forget(self, uid: int) -> None:
        """The session ends."""
        self._keys.pop(uid, None)
