"""What the prefix cache does for a request from its admission to its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dspine_cluster.core.prefix_index import NO_MATCH, PrefixIndex
from dspine_cluster.core.resume import COLD_START, Resume, plan_resume
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.types import CHUNK_GRID_TOKENS, PAGE_TOKENS


class CacheMemory(Protocol):
    """The tensors behind pages, state slots and checkpoints."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the K/V and features of a page."""
        ...

    def complete_page(self, source: int, target: int) -> None:
        """Give a page the features that it lacks and `source`, a page of the same tokens, has."""
        ...

    def save_state(self, slot: int, checkpoint: int) -> None:
        """Save the recurrent state of a slot, without the inputs that wait to be replayed, under a number."""
        ...

    def load_state(self, checkpoint: int, slot: int) -> None:
        """Give a slot a saved state. No input waits to be replayed in it then."""
        ...


class PrefixCache:
    """Finds, holds, extends and leaves behind the cached prefixes of a verifier's requests."""

    def __init__(
        self, index: PrefixIndex, memory: CacheMemory, *, has_states: bool, is_enabled: bool = True
    ) -> None:
        self.index = index
        self._memory = memory
        self._has_states = has_states
        self._is_enabled = is_enabled

    def find(self, session: Session) -> Resume:
        """Where a waiting session would start now."""
        if not self._is_enabled:
            return COLD_START
        tokens, request = session.tokens, session.request
        match = NO_MATCH if session.needs_whole_prompt else self.index.match(session.keys, tokens)
        return plan_resume(
            match, len(tokens), session.num_prompt, request.message_boundaries, has_states=self._has_states
        )

    def num_returned(self, session: Session) -> int:
        """Pages that can be allocated anew once the session has given up its own."""
        return sum(self.index.num_holders(page) == 1 for page in session.pages)

    def start(self, session: Session, resume: Resume, num_new_pages: int, slot: int) -> None:
        """Give an admitted session its pages. The pages of its match are held already."""
        match = resume.match
        new_pages = self.index.allocate(num_new_pages)
        if match.tail_page is not None:
            self._memory.copy_page(match.tail_page, new_pages[0])
            self.index.release([match.tail_page])
        if match.checkpoint is not None:
            self._memory.load_state(match.checkpoint, slot)
        session.start(resume, [*match.pages, *new_pages], slot)

    def note_computed(self, session: Session) -> None:
        """Share what the session's last prefill chunk has made restorable."""
        if not self._is_enabled:
            return
        if not self._has_states:
            self._insert(session, session.num_computed)
        elif session.num_computed in session.resume.checkpoints and session.phase is Phase.PREFILL:
            self._save(session)

    def note_rounds(self, sessions: Iterable[Session]) -> None:
        """Share what the sessions' rounds have made restorable: with states, nothing before they end."""
        if not self._is_enabled or self._has_states:
            return
        for session in sessions:
            if session.num_computed // PAGE_TOKENS > session.num_indexed_pages:
                self._insert(session, session.num_computed)

    def retire(self, session: Session, *, keep_state: bool) -> None:
        """The session gives up its pages; with `keep_state` its prefix stays restorable up to the end of its state."""
        if keep_state and self._is_enabled:
            if not self._has_states:
                self._insert(session, session.num_computed)
            elif session.num_in_state >= CHUNK_GRID_TOKENS:
                self._save(session)
        self.index.release(session.preempt())

    def _insert(self, session: Session, num_tokens: int) -> None:
        num_pages = num_tokens // PAGE_TOKENS
        if num_pages > session.num_indexed_pages:
            indexed = slice(session.num_indexed_pages, num_pages)
            own = session.pages[indexed]
            self.index.insert(session.keys, session.pages, indexed.start, indexed.stop)
            for page, kept in zip(own, session.pages[indexed], strict=True):
                if page != kept:  # another of the same tokens has taken its place
                    self._memory.complete_page(page, kept)
            session.num_indexed_pages = num_pages
            session.note_new_pages(indexed.start)

    def _save(self, session: Session) -> None:
        """Make the prefix restorable that the session's recurrent state covers."""
        assert session.state_slot is not None
        length = session.num_in_state
        self._insert(session, length)
        num_pages, num_tail = divmod(length, PAGE_TOKENS)
        tail = tuple(session.tokens[length - num_tail : length])
        tail_page = session.pages[num_pages] if num_tail else None
        checkpoint = self.index.add_checkpoint(session.keys[num_pages - 1], tail, tail_page)
        if checkpoint is not None:
            self._memory.save_state(session.state_slot, checkpoint)
