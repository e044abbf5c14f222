"""A verifier replica without tensors: the real sessions, planner, page pool and prefix cache on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.batch_planner import Budget, plan_batch
from dspine_cluster.core.cache_lifetime import CacheLifetime
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.page_hash import verifier_root
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.prefix_cache import PrefixCache
from dspine_cluster.core.prefix_index import PrefixIndex
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest

ROOT = verifier_root("simulated", "bfloat16", "")
"""Every simulated verifier has the same target."""


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """Memory and sizes of a replica."""

    pool_tokens: int = 1_000_000
    max_checkpoints: int = 1_000
    """Recurrent states kept in host memory; 0 stands for a dense target, which needs none."""
    max_running_requests: int = 64
    max_batch_tokens: int = 2048
    prefill_chunk_tokens: int = 1024
    max_verify_length: int = 7


@dataclass(frozen=True, slots=True)
class Job:
    """A request with the answer it will get, so that it is the same wherever it is served."""

    uid: str
    request: GenerateRequest
    output_ids: tuple[int, ...]
    on_first: Callable[[], None]
    """Called when the first token is there."""
    on_end: Callable[[int], None]
    """Called with the cached prompt tokens when the last token is there."""


class NoTensors:
    """A `CacheMemory` that has nothing to copy."""

    def copy_page(self, source: int, target: int) -> None:
        pass

    def complete_page(self, source: int, target: int) -> None:
        pass

    def save_state(self, slot: int, checkpoint: int) -> None:
        pass

    def load_state(self, checkpoint: int, slot: int) -> None:
        pass


class RoundModel(Protocol):
    """How a replica's rounds go."""

    def lengths(self, decoding: list[Session], prefilling: list[Session], budget: Budget) -> list[int]:
        """Verify lengths of the sessions that decode, for the round that begins."""
        ...

    def seconds(self, plan: BatchPlan) -> float:
        """How long the round takes, drafts included."""
        ...

    def num_accepted(self, session: Session, verify_length: int) -> int:
        """How many of a session's proposals are accepted."""
        ...

    def end(self, plan: BatchPlan, num_accepted: Sequence[int]) -> None:
        """The round has ended; accepted proposals by block."""
        ...

    def forget(self, session: Session) -> None:
        """A session has ended."""
        ...


class FixedRounds:
    """Rounds whose length the cost model gives, with a drafter of their own; each proposal is accepted with
    `acceptance`, and as many are verified as the limits say."""

    def __init__(self, limits: VerifierLimits, costs: CostModel, random: Random, acceptance: float) -> None:
        self._limits = limits
        self._costs = costs
        self._random = random
        self._acceptance = acceptance

    def lengths(self, decoding: list[Session], prefilling: list[Session], budget: Budget) -> list[int]:
        return [min(self._limits.max_verify_length, session.remaining_output - 1) for session in decoding]

    def seconds(self, plan: BatchPlan) -> float:
        return self._costs.plan_s(plan)

    def num_accepted(self, session: Session, verify_length: int) -> int:
        return draw_accepted(self._random, self._acceptance, verify_length)

    def end(self, plan: BatchPlan, num_accepted: Sequence[int]) -> None:
        pass

    def forget(self, session: Session) -> None:
        pass


def draw_accepted(random: Random, acceptance: float, verify_length: int) -> int:
    """How many proposals are accepted where each is with the same probability."""
    for accepted in range(verify_length):
        if random.random() >= acceptance:
            return accepted
    return verify_length


class SimulatedVerifier:
    """Serves jobs in rounds, as a model says that they go."""

    def __init__(
        self,
        simulation: Simulation,
        limits: VerifierLimits,
        costs: CostModel,
        random: Random,
        *,
        acceptance: float = 0.8,
        rounds: RoundModel | None = None,
    ) -> None:
        """Without `rounds` they are `FixedRounds`."""
        has_states = limits.max_checkpoints > 0
        self.index = PrefixIndex(
            PagePool(limits.pool_tokens // PAGE_TOKENS),
            has_states=has_states,
            max_checkpoints=limits.max_checkpoints,
        )
        self.busy_s = 0.0
        self._cache = PrefixCache(self.index, NoTensors(), has_states=has_states)
        self._page_lifetime = CacheLifetime()
        self._checkpoint_lifetime = CacheLifetime()
        self._simulation = simulation
        self._limits = limits
        self._rounds = rounds or FixedRounds(limits, costs, random, acceptance)
        self._uids = count()
        self._jobs: dict[int, Job] = {}
        self._expected: dict[int, int] = {}  # uid of a waiting session -> tokens it will have to prefill
        self._running: list[Session] = []
        self._waiting: list[Session] = []
        self._admitted: list[str] = []
        self._is_in_pass = False
        self._is_lost = False

    @property
    def num_requests(self) -> int:
        return len(self._running) + len(self._waiting)

    def submit(self, job: Job) -> None:
        """Take in a request."""
        uid = next(self._uids)
        session = Session(uid, job.request, uid, ROOT)
        self._jobs[uid] = job
        self._waiting.append(session)
        self._admitted.append(job.uid)
        match = self.index.match(session.keys, session.tokens)
        self._expected[uid] = len(session.tokens) - match.num_tokens
        if not self._is_in_pass:
            self._begin_pass()

    def load(self) -> ReplicaLoad:
        """How busy it is now."""
        now_s, index = self._simulation.now_s, self.index
        self._page_lifetime.note(now_s, index.num_evicted_pages, index.num_cached_pages)
        self._checkpoint_lifetime.note(now_s, index.num_evicted_checkpoints, index.num_checkpoints)
        return ReplicaLoad(
            running_requests=len(self._running),
            waiting_requests=len(self._waiting),
            queued_tokens=sum(self._expected.values())
            + sum(len(session.tokens) - session.num_computed for session in self._prefilling),
            cache_lifetime_s=min(self._page_lifetime.seconds, self._checkpoint_lifetime.seconds),
        )

    def take_admitted(self) -> list[str]:
        """Uids of the jobs that came since this was last asked."""
        admitted, self._admitted = self._admitted, []
        return admitted

    @property
    def decoding(self) -> list[Session]:
        """The sessions that decode, in order of their admission."""
        return [session for session in self._running if session.phase is Phase.DECODE]

    @property
    def _prefilling(self) -> list[Session]:
        return [session for session in self._running if session.phase is Phase.PREFILL]

    def job(self, session: Session) -> Job:
        return self._jobs[session.uid]

    def lose(self) -> dict[str, int]:
        """Nothing more happens here. The uids of its jobs, and how many tokens each has given."""
        self._is_lost = True
        return {self._jobs[s.uid].uid: s.num_output for s in (*self._running, *self._waiting)}

    def _begin_pass(self) -> None:
        plan = self._plan()
        self._is_in_pass = not plan.is_empty
        if self._is_in_pass:
            taken_s = self._rounds.seconds(plan)
            self.busy_s += taken_s
            self._simulation.after(taken_s, lambda: self._end_pass(plan))

    def _plan(self) -> BatchPlan:
        decoding = self.decoding
        budget = Budget(
            free_pages=self.index.num_available,
            free_slots=self._limits.max_running_requests - len(self._running),
            max_batch_tokens=self._limits.max_batch_tokens,
            prefill_chunk_tokens=self._limits.prefill_chunk_tokens,
        )
        prefilling = self._prefilling
        blocks = BlockPlans(decoding, self._rounds.lengths(decoding, prefilling, budget))
        plan = plan_batch(blocks, self._running, prefilling, self._waiting, budget, self._cache)
        for session in plan.preempted:
            self._running.remove(session)
            self._cache.retire(session, keep_state=True)
            self._waiting.insert(0, session)
            self._expected[session.uid] = len(session.tokens)
        admitted = [(chunk, chunk.resume) for chunk in plan.chunks if chunk.resume is not None]
        for _, resume in admitted:
            self.index.hold(resume.match)
        lacking = plan.blocks.lacking
        for session, page in zip(lacking, self.index.allocate(len(lacking)), strict=True):
            session.add_page(page)
        for chunk, resume in admitted:
            self._waiting.remove(chunk.session)
            self._running.append(chunk.session)
            del self._expected[chunk.session.uid]
            self._cache.start(chunk.session, resume, chunk.num_new_pages, chunk.session.uid)
        return plan

    def _end_pass(self, plan: BatchPlan) -> None:
        if self._is_lost:
            return
        for chunk in plan.chunks:
            session, is_last = chunk.session, chunk.completes_prefill
            session.advance_prefill(chunk.num_tokens)
            self._cache.note_computed(session)
            if is_last:
                job = self._jobs[session.uid]
                is_resumed = session.num_output > 0
                session.commit_first(job.output_ids[session.num_output])
                if not is_resumed:
                    job.on_first()
                self._settle(session)
        sessions, lengths = plan.blocks.sessions, plan.blocks.verify_lengths
        accepted = list(map(self._rounds.num_accepted, sessions, lengths))
        self._rounds.end(plan, accepted)
        for session, length, num_accepted in zip(sessions, lengths, accepted, strict=True):
            start = session.num_output
            tokens = self._jobs[session.uid].output_ids[start : start + num_accepted + 1]
            session.commit_round(tokens, num_proposed=length, num_verified=length, num_accepted=num_accepted)
            self._settle(session)
        self._begin_pass()

    def _settle(self, session: Session) -> None:
        """End a session that has its whole answer; else share what it has computed."""
        if session.remaining_output > 0:
            self._cache.note_computed(session)
            return
        self._rounds.forget(session)
        self._running.remove(session)
        cached = session.usage.cached_prompt_tokens
        self._cache.retire(session, keep_state=True)
        self._jobs.pop(session.uid).on_end(cached)
