"""Which sessions may be drafted for after a pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import compress

from dspine_cluster.core.session import Session


@dataclass(slots=True)
class Wanted:
    """In columns, a row for each session."""

    sessions: list[Session] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)
    num_proposals: list[int] = field(default_factory=list)
    """Those that can still become output beside a bonus token."""

    def part(self, are_chosen: Collection[bool]) -> Wanted:
        """Some of the rows."""
        return Wanted(
            list(compress(self.sessions, are_chosen)),
            list(compress(self.uids, are_chosen)),
            list(compress(self.num_proposals, are_chosen)),
        )

    def add(self, session: Session, num_proposals: int) -> None:
        self.sessions.append(session)
        self.uids.append(session.uid)
        self.num_proposals.append(num_proposals)

    def extend(self, other: Wanted) -> None:
        self.sessions += other.sessions
        self.uids += other.uids
        self.num_proposals += other.num_proposals
