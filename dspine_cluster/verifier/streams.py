"""The requests of a verifier loop: who waits, who runs, and the pages and slots they hold."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from dspine_cluster.core.batch_planner import BatchPlan
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.pools import StatePool
from dspine_cluster.verifier.detokenizer import Detokenizer


@dataclass(slots=True, eq=False)
class Stream:
    """One request: its session, the text it has become, and its rules on logits."""

    session: Session
    detokenizer: Detokenizer
    rules: LogitRules


class Streams:
    """Owns sessions from submission to end; pages and slots are freed on every path out."""

    def __init__(self, page_pool: PagePool, state_pool: StatePool) -> None:
        self.page_pool = page_pool
        self._state_pool = state_pool
        self._streams: dict[int, Stream] = {}
        self.running: list[Session] = []
        """Sessions that hold pages and a state slot, in order of admission."""
        self.waiting: list[Session] = []
        """Sessions in the order in which they will be admitted."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, uid: int) -> bool:
        return uid in self._streams

    def __getitem__(self, uid: int) -> Stream:
        return self._streams[uid]

    @property
    def num_free_slots(self) -> int:
        return self._state_pool.num_free

    @property
    def decoding(self) -> list[Session]:
        return [session for session in self.running if session.phase is Phase.DECODE]

    def add(self, stream: Stream) -> None:
        """Take in a new request."""
        self._streams[stream.session.uid] = stream
        self._enqueue(stream.session)

    def apply(self, plan: BatchPlan) -> None:
        """Take pages and slots as planned."""
        for session in plan.preempted:
            self._vacate(session)
            self._enqueue(session)
        for item in plan.items:
            session = item.session
            pages = self.page_pool.allocate(item.num_new_pages)
            assert pages is not None, "the plan takes more pages than are free"
            session.pages.extend(pages)
            if session.phase is Phase.WAITING:
                self.waiting.remove(session)
                self.running.append(session)
                session.state_slot = self._state_pool.allocate()
                session.phase = Phase.PREFILL

    def remove(self, uid: int) -> Session:
        """The request ends: everything it holds is free again."""
        session = self._streams.pop(uid).session
        if session.phase is Phase.WAITING:
            self.waiting.remove(session)
        else:
            self._vacate(session)
        return session

    def check_integrity(self) -> None:
        """Assert that pages and slots in use are exactly those of running sessions."""
        self.page_pool.check_integrity()
        pages = [page for session in self.running for page in session.pages]
        assert len(pages) == len(set(pages)) == self.page_pool.num_pages - self.page_pool.num_free
        slots = {session.state_slot for session in self.running}
        assert len(slots) == len(self.running) == self._state_pool.num_slots - self._state_pool.num_free
        assert len(self._streams) == len(self.running) + len(self.waiting)

    def _vacate(self, session: Session) -> None:
        assert session.state_slot is not None
        self.running.remove(session)
        self._state_pool.release(session.state_slot)
        self.page_pool.release(session.preempt())

    def _enqueue(self, session: Session) -> None:
        insort(self.waiting, session, key=lambda session: (session.request.priority, session.arrival))
