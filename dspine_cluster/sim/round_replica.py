"""A verifier replica of a fleet, round by round: the real verify length policy learns costs and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dspine_cluster.config import parse_verify
from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.batch_planner import Budget, load_ahead
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.page_hash import PageKey, page_keys
from dspine_cluster.core.session import Session
from dspine_cluster.core.survival import cells_of
from dspine_cluster.core.verify_length import (
    NO_LOAD,
    Blocks,
    Outcomes,
    PassLoad,
)
from dspine_cluster.core.verify_policy import make_policy
from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.replica import Work
from dspine_cluster.sim.replica_figures import ReplicaFigures
from dspine_cluster.sim.round_table import RoundTable
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.verifier import ROOT, Job, SimulatedVerifier, VerifierLimits, draw_accepted
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions


class RoundVerifier:
    """See `Replica`. In lockstep: all that decode wait for the drafts of those that are drafted for."""

    def __init__(
        self,
        name: str,
        simulation: Simulation,
        table: RoundTable,
        costs: CostModel,
        limits: VerifierLimits,
        *,
        acceptances: Sequence[float],
        verify: str,
        random: Random,
        slow_factor: float = 1.0,
    ) -> None:
        self.name = name
        self.drafter: SimulatedDrafter | None = None
        self._simulation = simulation
        self._costs = costs
        self._limits = limits
        self._acceptances = tuple(acceptances)
        self._cells = [cells_of([acceptance] * limits.max_verify_length) for acceptance in acceptances]
        self._random = random
        self._slow_factor = slow_factor
        self._policy = make_policy(parse_verify(verify), random, max_proposals=limits.max_verify_length)
        self._figures = ReplicaFigures(table, len(acceptances))
        self._verifier = SimulatedVerifier(simulation, limits, costs, random, rounds=self)
        self._works: dict[str, Work] = {}
        self._load = NO_LOAD
        self._pass_s = self._prefill_s = self._draft_s = self._queue_s = 0.0
        self._num_drafted = 0

    # A replica

    @property
    def num_requests(self) -> int:
        return self._verifier.num_requests

    def keys(self, work: Work) -> Sequence[PageKey]:
        return page_keys(self._prompt(work), ROOT)

    def submit(self, work: Work) -> None:
        def on_first() -> None:
            if work.first_s is None:
                work.first_s = self._simulation.now_s
                self._figures.note_first()

        def on_end(cached_tokens: int) -> None:
            del self._works[work.uid]
            work.cached_tokens = cached_tokens
            self._figures.note_end(work.talk.exchanges[work.turn].output_tokens)
            work.on_end(work)

        self._works[work.uid] = work
        prompt = self._prompt(work)
        request = GenerateRequest(
            work.uid,
            prompt,
            SamplingParams(),
            StopConditions(max_tokens=work.output_tokens),
            message_boundaries=(work.talk.system_tokens, len(prompt)),
        )
        output = work.talk.text_ids(len(prompt), len(prompt) + work.output_tokens)
        self._verifier.submit(Job(work.uid, request, output, on_first, on_end))

    @property
    def has_news(self) -> bool:
        return True

    def load(self) -> ReplicaLoad:
        return self._verifier.load()

    def take_keys(self) -> tuple[frozenset[PageKey], frozenset[PageKey]]:
        added, removed = self._verifier.index.events.take()
        return frozenset(added), frozenset(removed)

    def take_admitted(self) -> list[str]:
        return self._verifier.take_admitted()

    def observe(self, is_draining: bool) -> VerifierStats:
        counts = [0] * len(self._acceptances)
        num_produced = 0
        decoding = self._verifier.decoding
        for session in decoding:
            work = self._work(session)
            counts[work.talk.kind] += 1
            num_produced += work.num_produced + session.num_output
        in_use = sum(len(session.tokens) for session in decoding)
        return self._figures.stats(
            self.name,
            self._simulation.now_s,
            counts=tuple(counts),
            has_drafter=self.drafter is not None,
            load=self.load(),
            num_produced=num_produced,
            page_usage_ratio=min(1.0, in_use / self._limits.pool_tokens),
            max_requests=self._limits.max_running_requests,
            prefill_token_s=self._costs.token_s * self._slow_factor,
            is_draining=is_draining,
        )

    def stop(self) -> list[Work]:
        for uid, num_tokens in self._verifier.lose().items():
            work = self._works[uid]
            work.num_produced += min(num_tokens, work.output_tokens - 1)
        return list(self._works.values())

    # The model of its rounds

    def lengths(self, decoding: list[Session], prefilling: list[Session], budget: Budget) -> list[int]:
        chosen = self._policy.choose_drafts([session.uid for session in decoding])
        asked = set(chosen) if self.drafter is not None else set()
        self._num_drafted = len(asked)
        most = self._limits.max_verify_length
        counts = [
            min(most, session.remaining_output - 1) if session.uid in asked else 0 for session in decoding
        ]
        blocks = Blocks(
            [session.uid for session in decoding],
            counts,
            [self._cells[self._work(session).talk.kind] for session in decoding],
            [True] * len(decoding),
        )
        self._load = load_ahead(BlockPlans(decoding), [0] * len(decoding), prefilling, budget)
        return self._policy.choose(blocks, self._load)

    def seconds(self, plan: BatchPlan) -> float:
        self._draft_s = self._queue_s = 0.0
        if self._num_drafted and self.drafter is not None:
            own_s = self._costs.drafts_s(self._num_drafted)
            self._draft_s = self.drafter.ask(self._simulation.now_s, own_s)
            self._queue_s = self._draft_s - own_s
            self._policy.note_drafts(self._num_drafted, self._draft_s)
        sessions = plan.sessions
        num_tokens = len(plan.blocks) + sum(plan.blocks.verify_lengths)
        num_kv_tokens = sum(len(session.tokens) for session in sessions)
        prefill = sum(chunk.num_tokens for chunk in plan.chunks)
        costs, factor, count = self._costs, self._slow_factor, len(sessions)
        self._pass_s = factor * costs.pass_s(count, num_tokens + prefill, num_kv_tokens)
        without_s = factor * costs.pass_s(len(plan.blocks), num_tokens, num_kv_tokens)
        self._prefill_s = self._pass_s - without_s if prefill and plan.blocks else 0.0
        self._load = PassLoad(prefill, num_kv_tokens, self._load.max_verified_tokens)
        return self._pass_s + self._draft_s

    def num_accepted(self, session: Session, verify_length: int) -> int:
        return draw_accepted(self._random, self._acceptances[self._work(session).talk.kind], verify_length)

    def end(self, plan: BatchPlan, num_accepted: Sequence[int]) -> None:
        outcomes = Outcomes(plan.blocks.uids, plan.blocks.verify_lengths, num_accepted)
        self._policy.note_pass(outcomes, self._load, self._pass_s)
        self._figures.note(
            num_rounds=1.0,
            round_s=self._pass_s + self._draft_s,
            prefill_s=self._prefill_s,
            draft_queue_s=self._queue_s,
            num_decoding=len(plan.blocks),
            committed=float(len(plan.blocks) + sum(num_accepted)),
            prefilled=float(self._load.num_prefill_tokens),
        )

    def forget(self, session: Session) -> None:
        self._policy.forget(session.uid)

    def _work(self, session: Session) -> Work:
        return self._works[self._verifier.job(session).uid]

    def _prompt(self, work: Work) -> tuple[int, ...]:
        return work.talk.text_ids(0, work.prompt_tokens)
