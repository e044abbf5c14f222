"""The requests of a verifier loop: who waits, who runs, and the pages and slots they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from dspine_cluster.core.batch_plan import BatchPlan
from dspine_cluster.core.fair_queue import FairQueue
from dspine_cluster.core.prefix_cache import PrefixCache
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.pools import StatePool
from dspine_cluster.observability.metrics import VerifierMetrics
from dspine_cluster.observability.timeline import Timeline
from dspine_cluster.verifier.detokenizer import Detokenizer


@dataclass(slots=True, eq=False)
class Stream:
    """One request: its session, the text it has become, and its rules on logits."""

    session: Session
    detokenizer: Detokenizer
    rules: LogitRules
    end_ids: frozenset[int]
    """Tokens that end the request."""
    timeline: Timeline | None = None
    """Of a request that is traced."""
    may_stop: bool = field(init=False)
    """Whether text can end the request."""
    num_charged: int = field(init=False)
    """Committed tokens that its client was charged for, and those that were there when it came."""

    def __post_init__(self) -> None:
        self.num_charged = len(self.session.tokens)
        self.may_stop = self.detokenizer.may_stop

    def note_phase(self) -> None:
        """Its session has entered another phase."""
        if self.timeline is not None:
            self.timeline.note(self.session)


class Cohort:
    """Requests that decode together, and what of each is the same in all their rounds: in columns."""

    __slots__ = (
        "are_greedy",
        "contexts",
        "detokenizers",
        "end_ids",
        "may_stop",
        "rules",
        "state_slots",
        "streams",
        "uids",
    )

    def __init__(self, uids: Sequence[int], streams: Sequence[Stream]) -> None:
        sessions = [stream.session for stream in streams]
        self.uids = uids
        self.streams = streams
        self.rules = [stream.rules for stream in streams]
        self.detokenizers = [stream.detokenizer for stream in streams]
        self.contexts = [session.tokens for session in sessions]
        self.are_greedy = [session.is_greedy for session in sessions]
        self.state_slots = [cast("int", session.state_slot) for session in sessions]
        self.end_ids = frozenset[int]().union(*[stream.end_ids for stream in streams])
        """Tokens that end any of the requests."""
        self.may_stop = any(stream.may_stop for stream in streams)


class Streams:
    """Owns sessions from submission to end; pages and slots are freed on every path out."""

    def __init__(self, prefix_cache: PrefixCache, state_pool: StatePool) -> None:
        self.prefix_cache = prefix_cache
        self._state_pool = state_pool
        self.by_uid: dict[int, Stream] = {}
        """Changed here alone."""
        self.num_grammars = 0
        """Requests among them that have one."""
        self.running: list[Session] = []
        """Sessions that hold pages and a state slot, in order of admission."""
        self.prefilling: list[Session] = []
        """Those of them whose prompts are being computed, in the same order."""
        self.waiting = FairQueue[Session]()
        """Sessions in the order in which they will be admitted."""
        self._cohort = Cohort([], [])
        """Of the last round, until one that runs ends or gives up its slot."""
        self._expected: dict[int, int] = {}
        """Tokens that each waiting session has to prefill, by uid: those not cached when it began to wait."""

    def __len__(self) -> int:
        return len(self.by_uid)

    def __contains__(self, uid: int) -> bool:
        return uid in self.by_uid

    @property
    def num_free_slots(self) -> int:
        return self._state_pool.num_free

    @property
    def decoding(self) -> list[Session]:
        if not self.prefilling:
            return self.running.copy()
        return [session for session in self.running if session.phase is Phase.DECODE]

    @property
    def num_joining(self) -> int:
        """Requests that have not decoded and will soon: their prompts are computed, or wait for that and have room."""
        if not self.prefilling and not self.waiting:
            return 0
        admitted = islice(self.waiting, self.num_free_slots)
        return sum([session.round == 0 for session in (*self.prefilling, *admitted)])

    @property
    def queued_tokens(self) -> int:
        """Committed tokens still to be prefilled, those that are cached left out."""
        left = sum(len(session.tokens) - session.num_computed for session in self.prefilling)
        return sum(self._expected.values()) + left

    def cohort(self, uids: Sequence[int]) -> Cohort:
        """Of some that decode; those of the next round are most often the same."""
        if self._cohort.uids != uids:
            self._cohort = Cohort(uids, [self.by_uid[uid] for uid in uids])
        return self._cohort

    def add(self, stream: Stream) -> None:
        """Take in a new request."""
        self.by_uid[stream.session.uid] = stream
        self.num_grammars += stream.rules.grammar is not None
        self._enqueue(stream.session)

    def apply(self, plan: BatchPlan) -> None:
        """Take pages and slots as planned."""
        for session in plan.preempted:
            self._vacate(session, keep_state=True)
            self._enqueue(session)
        index = self.prefix_cache.index
        admitted = [(chunk, chunk.resume) for chunk in plan.chunks if chunk.resume is not None]
        for _, resume in admitted:
            index.hold(resume.match)
        if lacking := plan.blocks.lacking:
            for session, page in zip(lacking, index.allocate(len(lacking)), strict=True):
                session.add_page(page)
        for chunk, resume in admitted:
            session = chunk.session
            if session.cached_prompt_tokens is None:
                self.waiting.shares.charge(session.request.client, self._expected[session.uid])
            self._dequeue(session)
            self.running.append(session)
            self.prefilling.append(session)
            slot = self._state_pool.allocate()
            self.prefix_cache.start(session, resume, chunk.num_new_pages, slot)

    def commit_first(self, session: Session, token: int) -> None:
        """The session has its first token: it decodes from now on."""
        session.commit_first(token)
        self.prefilling.remove(session)
        self.by_uid[session.uid].note_phase()

    def note_committed(self) -> None:
        """A pass has been committed: whoever waits is served by what was computed for each client up to now."""
        if self.waiting:
            self._charge(self.running)

    def remove(self, uid: int, *, keep_state: bool) -> None:
        """The request ends: everything it holds is free again, or cached. With `keep_state` a later request can resume
        from where it ended."""
        stream = self.by_uid[uid]
        session = stream.session
        if session.phase is Phase.WAITING:
            self._dequeue(session)
        else:
            self._vacate(session, keep_state=keep_state)
        del self.by_uid[uid]
        self.num_grammars -= stream.rules.grammar is not None

    def write_gauges(self, metrics: VerifierMetrics) -> None:
        """Tell how many requests there are and what is held."""
        index = self.prefix_cache.index
        metrics.running_requests = len(self.running)
        metrics.waiting_requests = len(self.waiting)
        metrics.page_usage_ratio = 1.0 - index.num_available / index.pool.num_pages
        metrics.cached_pages = index.num_cached_pages
        metrics.checkpoints = index.num_checkpoints
        metrics.evicted_pages_total = index.num_evicted_pages
        metrics.evicted_checkpoints_total = index.num_evicted_checkpoints

    def check_integrity(self) -> None:
        """Assert that pages and slots in use are exactly those of running sessions, beside cached pages."""
        index = self.prefix_cache.index
        index.check_integrity()
        held = Counter(page for session in self.running for page in session.pages)
        for page in range(index.pool.num_pages):
            assert index.num_holders(page) == held[page], f"page {page} is held by nobody or counted wrongly"
        for session in self.running:
            for number, page in enumerate(session.pages):
                assert index.is_indexed(page) == (number < session.num_indexed_pages)
        assert self.prefilling == [x for x in self.running if x.phase is Phase.PREFILL]
        slots = {session.state_slot for session in self.running}
        assert len(slots) == len(self.running) == self._state_pool.num_slots - self._state_pool.num_free
        assert len(self.by_uid) == len(self.running) + len(self.waiting)
        assert self._expected.keys() == {session.uid for session in self.waiting}

    def _vacate(self, session: Session, *, keep_state: bool) -> None:
        slot = session.state_slot
        assert slot is not None
        self._charge([session])
        self._cohort = Cohort([], [])
        self.running.remove(session)
        if session.phase is Phase.PREFILL:
            self.prefilling.remove(session)
        self.prefix_cache.retire(session, keep_state=keep_state)
        self._state_pool.release(slot)

    def _charge(self, sessions: Iterable[Session]) -> None:
        """Charge clients for the tokens that were committed since this was last done for these sessions."""
        for session in sessions:
            stream, num_tokens = self.by_uid[session.uid], len(session.tokens)
            self.waiting.shares.charge(session.request.client, num_tokens - stream.num_charged)
            stream.num_charged = num_tokens

    def _enqueue(self, session: Session) -> None:
        if not self.waiting:
            self._charge(self.running)  # while nobody waits charges mean nothing
        cached = self.prefix_cache.find(session).match.num_tokens
        self._expected[session.uid] = len(session.tokens) - cached
        request = session.request
        self.waiting.add(
            session,
            client=request.client,
            share=request.client_share,
            order=(request.priority, session.arrival),
            cost_tokens=self._expected[session.uid],
        )

    def _dequeue(self, session: Session) -> None:
        self.waiting.remove(session, session.request.client)
        del self._expected[session.uid]
