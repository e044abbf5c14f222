"""When the rounds of requests run: together once their drafts have come, or at once where they decode plainly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspine_cluster.core.session import Session
from dspine_cluster.core.verify_length import VerifyLengthPolicy
from dspine_cluster.verifier.drafters import Drafters

Wanted = Sequence[tuple[Session, int]]
"""Sessions, each with the proposals that can still become output."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for after a pass."""

    at_s: float
    num_blocks: int
    pass_number: int


class Pacing:
    """Lockstep: a round starts when the drafts asked for after the last one have come or are late. Requests that asked
    later, because their prefill filled the gap, are left to the next round rather than waited for, and those that
    decode plainly wait for nothing.
    """

    def __init__(self, policy: VerifyLengthPolicy, drafters: Drafters, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._drafters = drafters
        self._clock = clock
        self._drafted: set[int] = set()  # uids of requests that are drafted for
        self._awaited: set[int] = set()  # of these, those whose drafts the next round waits for
        self._asked: _Asked | None = None
        self._num_passes = 0

    def ready(self, decoding: Sequence[Session]) -> list[Session]:
        """Decoding sessions whose round may run now."""
        outstanding = {session.uid for session in decoding if self._drafters.is_outstanding(session)}
        if outstanding & self._awaited:
            return [session for session in decoding if session.uid not in self._drafted]
        self._note_drafts()
        return [session for session in decoding if session.uid not in outstanding]

    def is_drafted(self, session: Session) -> bool:
        """Whether the session was to be drafted for."""
        return session.uid in self._drafted

    def ask(self, rounds: Wanted, joined: Wanted, prefilling: Sequence[Session]) -> None:
        """After a pass: ask for the next drafts.

        Args:
            rounds: sessions that had their round in it and go on.
            joined: sessions whose prefill it completed.
            prefilling: sessions of whose prompts it computed a part.
        """
        self._num_passes += 1
        policy, drafters = self._policy, self._drafters
        moved = [*rounds, *joined]
        chosen = set(policy.choose_drafts([session.uid for session, num_useful in moved if num_useful > 0]))
        had_round = any(session.uid in self._awaited for session, _ in rounds) or not self._awaited
        self.forget([session for session, _ in moved])
        self._drafted |= chosen
        self._awaited |= {s.uid for s, _ in (moved if had_round else rounds) if s.uid in chosen}
        if not policy.wants_drafts:
            return
        drafters.hold_back([session for session, _ in moved if session.uid not in chosen])
        if not policy.drafts_newcomers:
            drafters.hold_back(prefilling)
            prefilling = ()
        if chosen or prefilling:
            self._ask([pair for pair in moved if pair[0].uid in chosen], prefilling, is_next=had_round)

    def forget(self, sessions: Sequence[Session]) -> None:
        """The sessions ended, or gave up their pages."""
        uids = {session.uid for session in sessions}
        self._drafted -= uids
        self._awaited -= uids

    def _ask(self, wanted: Wanted, prefilling: Sequence[Session], *, is_next: bool) -> None:
        """`is_next` says whether the next round waits for these drafts."""
        asked_at_s = self._clock()
        self._drafters.receive()  # what drafters have of the prompts that this pass began with
        num_blocks = self._drafters.ask(wanted, prefilling)
        if num_blocks and is_next:
            self._asked = _Asked(asked_at_s, num_blocks, self._num_passes)

    def _note_drafts(self) -> None:
        """The drafts that the round waited for have come. Where passes ran meanwhile, the wait says nothing of drafts:
        then the drafters' own figure has to do."""
        if self._asked is None:
            return
        draft_s = self._drafters.take_slowest_draft_s()
        if self._asked.pass_number == self._num_passes:
            draft_s = self._clock() - self._asked.at_s
        if draft_s > 0.0:
            self._policy.note_drafts(self._asked.num_blocks, draft_s)
        self._asked = None
