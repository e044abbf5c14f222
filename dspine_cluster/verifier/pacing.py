"""When the rounds of requests run: together once their drafts have come, or at once where they decode plainly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import inf

from dspine_cluster.core.session import Session
from dspine_cluster.core.verify_length import VerifyLengthPolicy
from dspine_cluster.observability.metrics import RoundPhase, VerifierMetrics
from dspine_cluster.verifier.drafters import Drafters
from dspine_cluster.verifier.wanted import Wanted


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for after a pass."""

    at_s: float
    num_blocks: int
    pass_number: int


@dataclass(frozen=True, slots=True)
class _Idle:
    """Why no round may run. Between passes that changes with what is awaited, and with the clock."""

    num_decoding: int
    awaiting: tuple[tuple[int, float], ...]
    """As `Drafters.awaiting`."""
    until_s: float
    asked_at_s: float | None = None
    """When the drafts of all of them were asked for, if no round may run as long as any is awaited."""


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that are drafted for and have their rounds together; by uid."""

    members: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    """Members whose drafts the next round waits for."""
    asked: _Asked | None = None


class Pacing:
    """Lockstep: a round starts when the drafts asked for after the last one have come or are late. Requests that asked
    later, because their prefill filled the gap, are left to the next round rather than waited for, and those that
    decode plainly wait for nothing.

    Where the policy finds that this pays, two halves take turns: each waits for its own drafts, and the round of one
    fills the gap of the other.
    """

    def __init__(
        self,
        policy: VerifyLengthPolicy,
        drafters: Drafters,
        clock: Callable[[], float],
        metrics: VerifierMetrics,
    ) -> None:
        self._policy = policy
        self._drafters = drafters
        self._clock = clock
        self._metrics = metrics
        self._groups = (_Group(), _Group())  # the second has members only while halves take turns
        self._running: _Group | None = None  # whose round the present pass holds
        self._num_passes = 0
        self._idle: _Idle | None = None

    def still_waits(self, num_running: int) -> bool:
        """Whether all that run decode, and as when drafts or `ready` were last asked for none of them may. A loop wakes
        several times while the drafts of a round come, and they may come in several batches."""
        idle = self._idle
        if idle is None or idle.num_decoding != num_running:
            return False
        awaiting = self._drafters.awaiting
        if awaiting != idle.awaiting:
            deadlines_s = [deadline_s for count, deadline_s in awaiting if count]
            if idle.asked_at_s is None or not deadlines_s:
                return False
            until_s = idle.asked_at_s + min(deadlines_s)
            self._idle = idle = _Idle(num_running, awaiting, until_s, idle.asked_at_s)
        return self._clock() < idle.until_s

    def wait_s(self) -> float:
        """Seconds until the next outstanding draft is late, asked after `still_waits` or `ready`; infinity when none is
        outstanding."""
        late_at_s = self._drafters.outstanding().values() if self._idle is None else (self._idle.until_s,)
        return max(0.0, min(late_at_s, default=inf) - self._clock())

    def rest_s(self, num_running: int) -> float:
        """Asked after `ask`: seconds for which no round may run unless something arrives; 0 where only `ready` can
        tell."""
        idle = self._idle
        if idle is None or idle.num_decoding != num_running:
            return 0.0
        return max(0.0, idle.until_s - self._clock())

    def ready(self, decoding: Sequence[Session]) -> list[Session]:
        """Decoding sessions whose round may run now."""
        late_at_s = self._drafters.outstanding()
        outstanding = late_at_s.keys()
        # The one that ran last comes last.
        groups = self._groups[::-1] if self._running is self._groups[0] else self._groups
        ready = [g for g in groups if g.awaited.isdisjoint(outstanding) and not g.members <= outstanding]
        self._running = ready[0] if ready else None
        if self._running is not None:
            self._note_drafts(self._running)
        waiting = set(outstanding)
        for group in self._groups:
            if group is not self._running:
                waiting |= group.members
        found = [session for session in decoding if session.uid not in waiting] if waiting else [*decoding]
        self._idle = None
        if not found:
            until_s = min(late_at_s.values(), default=inf)
            self._idle = _Idle(len(decoding), self._drafters.awaiting, until_s)
        return found

    def prefill_room(self, most: int) -> int:
        """How many prompt tokens a pass should hold that has nothing else, so that it ends when drafts come; `most`
        where none are waited for."""
        asked = [group.asked for group in self._groups if group.asked is not None and group.awaited]
        if not asked:
            return most
        first = min(asked, key=lambda asked: asked.at_s)
        return self._policy.prefill_room(most, first.num_blocks, self._clock() - first.at_s)

    def is_drafted(self, session: Session) -> bool:
        """Whether the session was to be drafted for."""
        return any(session.uid in group.members for group in self._groups)

    def ask(self, moved: Wanted, prefilling: Sequence[Session]) -> None:
        """After a pass: ask for the next drafts.

        Args:
            moved: sessions that had their round in it and go on, and those whose prefill it completed.
            prefilling: sessions of whose prompts it computed a part.
        """
        self._num_passes += 1
        self._idle = None
        policy, drafters = self._policy, self._drafters
        uids, num_proposals = moved.uids, moved.num_proposals
        useful = uids if 0 not in num_proposals else list(compress(uids, num_proposals))
        chosen = policy.choose_drafts(useful)
        wanted = moved
        others: list[Session] = []
        if len(chosen) < len(uids):
            chosen = frozenset(chosen)
            wanted = moved.part([uid in chosen for uid in uids])
            others = [session for session in moved.sessions if session.uid not in chosen]
        begun = self._arrange(wanted.uids, set(uids))
        if not policy.wants_drafts:
            return
        drafters.hold_back(others)
        if not policy.drafts_newcomers:
            drafters.hold_back(prefilling)
            prefilling = ()
        if wanted.uids or prefilling:
            asked_at_s = self._clock()
            num_blocks = drafters.ask(wanted, prefilling)
            for group in begun:
                group.asked = _Asked(asked_at_s, num_blocks, self._num_passes) if num_blocks else None
            awaiting = drafters.awaiting
            if num_blocks and num_blocks == len(wanted.uids) == sum([count for count, _ in awaiting]):
                # If these are all that decode, none has its round before something comes or is late.
                until_s = asked_at_s + min([deadline_s for _, deadline_s in awaiting])
                first, second = self._groups
                is_lockstep = first in begun and not second.members
                self._idle = _Idle(num_blocks, awaiting, until_s, asked_at_s if is_lockstep else None)

    def forget(self, sessions: Sequence[Session]) -> None:
        """The sessions ended, or gave up their pages."""
        self._idle = None
        self._take_out({session.uid for session in sessions})

    def _take_out(self, uids: set[int]) -> None:
        for group in self._groups:
            if group.members:
                group.members -= uids
                group.awaited -= uids

    def _arrange(self, wanted: Sequence[int], moved: set[int]) -> list[_Group]:
        """Put what is drafted for into groups, and nothing else that has moved; returns the groups whose next round
        begins with it. By uid."""
        first, second = self._groups
        belonged = second.members & moved
        joining = moved if len(wanted) == len(moved) else set(wanted)
        # A group that has had its round, or has nothing to wait for, waits for all that join it now.
        begun = [group for group in self._groups if group is self._running or not group.awaited]
        self._take_out(moved)
        if self._policy.has_halves:
            for uid in wanted:
                group, other = (second, first) if uid in belonged else (first, second)
                (other if len(group.members) > len(other.members) else group).members.add(uid)
        else:
            first.members |= joining
        for group in begun:
            group.awaited |= group.members & joining
        return [group for group in begun if group.awaited]

    def _note_drafts(self, group: _Group) -> None:
        """The drafts that the round waited for have come, or none has. Where passes ran meanwhile, the wait says
        nothing of drafts: then the drafters' own figure has to do."""
        if group.asked is None:
            return
        draft_s = self._drafters.take_slowest_draft_s()
        if draft_s > 0.0:
            if group.asked.pass_number == self._num_passes:
                waited_s = self._clock() - group.asked.at_s
                queued_s = max(0.0, waited_s - draft_s)
                self._metrics.draft_queue_seconds_total += queued_s * group.asked.num_blocks
                draft_s = max(draft_s, waited_s)
            self._policy.note_drafts(group.asked.num_blocks, draft_s)
            self._metrics.note_phase(RoundPhase.DRAFT, draft_s)
        group.asked = None
