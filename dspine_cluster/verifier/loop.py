"""The verifier loop: receive, plan, run, commit, send. It owns every round of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

import torch

from dspine_cluster.config import DraftingConfig, EngineConfig
from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.batch_planner import Budget, load_ahead, plan_batch
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.end_of_request import end_token_ids
from dspine_cluster.core.page_hash import PageKey, draft_root, verifier_root
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.core.verifier_meter import VerifierMeter
from dspine_cluster.core.verify_length import Blocks, Outcomes, VerifyLengthPolicy
from dspine_cluster.engine.cache_memory import make_prefix_cache
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.grammar_state import CompiledGrammar, GrammarState
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.observability.metrics import RoundPhase, VerifierMetrics
from dspine_cluster.observability.timeline import Timeline
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import FinishReason, GenerateRequest
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.committing import Commits, Committing
from dspine_cluster.verifier.detokenizer import Detokenizer
from dspine_cluster.verifier.drafted import DraftedBlock
from dspine_cluster.verifier.drafters import Drafters
from dspine_cluster.verifier.links import OnLost
from dspine_cluster.verifier.load_meter import LoadMeter
from dspine_cluster.verifier.pacing import Pacing
from dspine_cluster.verifier.passes import PassRunner
from dspine_cluster.verifier.streams import Stream, Streams

_AVERAGE_WEIGHT = 0.2


class VerifierLoop:
    """One thread calls every method. `step` runs one pass; it never blocks on a channel."""

    def __init__(
        self,
        engine: Engine,
        token_bytes: TokenBytes,
        *,
        engine_config: EngineConfig,
        drafting_config: DraftingConfig,
        policy: VerifyLengthPolicy,
        block_size: int,
        mask_token_id: int | None,
        deliver: Callable[[Sequence[Committed]], None],
        on_drafter_lost: OnLost,
        target_fingerprint: str = "",
        drafter_fingerprint: str = "",
        random_seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = VerifierMetrics()
        self.streams = Streams(make_prefix_cache(engine, engine_config), engine.state_pool)
        self.prefix_events = self.streams.prefix_cache.index.events
        generator = torch.Generator()
        if random_seed is None:
            generator.seed()
        else:
            generator.manual_seed(random_seed)
        self._passes = PassRunner(engine, self.streams, generator)
        self.drafters = Drafters(
            drafting_config,
            self._passes,
            on_drafter_lost,
            clock,
            vocab_size=engine.target.config.vocab_size,
            row_bytes=engine.feature_row_bytes,
            root_of=self._draft_root_of if engine_config.prefix_cache else None,
        )
        self.policy = policy
        self._engine = engine
        self._token_bytes = token_bytes
        self._target_fingerprint = target_fingerprint
        self._drafter_fingerprint = drafter_fingerprint
        self._config = engine_config
        self._max_proposals = block_size - 1
        self._eos_token_ids = frozenset(engine.target.config.eos_token_ids)
        self._mask_token_id = mask_token_id
        self._deliver = deliver
        self._clock = clock
        self._load_meter = LoadMeter(clock)
        self.meter = VerifierMeter(engine_config.max_running_requests)
        self._committing = Committing(
            self.streams,
            self.metrics,
            self._eos_token_ids,
            self._max_proposals,
            lambda uid: self._end(uid, keep_state=True),
        )
        self._arrivals = count()
        self._pacing = Pacing(policy, self.drafters, clock, self.metrics)
        self._busy_since_s: float | None = None
        """The end of the last pass, unless there was nothing to do since."""
        self._drafted: list[DraftedBlock | None] = []  # of each request that the pass decodes

    def submit(
        self,
        uid: int,
        request: GenerateRequest,
        grammar: CompiledGrammar | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """Take in a request that has been validated, with its grammar if it has one, and a timeline if it is traced.
        Uids are never reused."""
        root = verifier_root(self._target_fingerprint, self._config.dtype, request.cache_salt)
        session = Session(uid, request, next(self._arrivals), root)
        detokenizer = Detokenizer(
            self._token_bytes,
            request.stop.stop_strings,
            min_tokens=request.stop.min_tokens,
            skip_special_tokens=request.skip_special_tokens,
            shows_stop=request.stop.shows_stop,
        )
        # What the forced tokens made certain has been delivered already; what they left open is still held.
        if detokenizer.push(request.forced_output_ids).stopped:
            self._deliver([Committed(uid, (), 0, FinishReason.STOP, session, session.counts, "")])
            return
        rules = LogitRules(
            request.sampling,
            request.stop,
            num_prompt_tokens=session.num_prompt,
            eos_token_ids=self._eos_token_ids,
            mask_token_id=self._mask_token_id,
            vocab_size=self._engine.target.config.vocab_size,
            device=self._engine.target.embedding_weight.device,
            grammar=None if grammar is None else GrammarState(grammar, session.num_prompt),
        )
        self.metrics.prompt_tokens_total += session.num_prompt
        self._passes.logprobs.add(session)
        end_ids = end_token_ids(rules.end_conditions, self._eos_token_ids)
        self.streams.add(Stream(session, detokenizer, rules, end_ids, timeline))
        self.streams.write_gauges(self.metrics)

    def abort(self, uid: int) -> None:
        """Forget a request; harmless when it has ended."""
        self._passes.logprobs.forget(uid)
        if uid in self.streams:
            self._end(uid, keep_state=False)
            self.streams.write_gauges(self.metrics)

    def load(self) -> ReplicaLoad:
        """How busy it is between two steps."""
        return self._load_meter.load(self.streams)

    def step(self) -> float | None:
        """Run one pass if there is something to run.

        Returns None after a pass; else the seconds after which to look again although nothing has arrived, infinity
        if only an arrival can change anything.
        """
        started_s = self._clock()
        self.drafters.receive()
        plan = self._plan()
        if plan is None:
            wait_s = self._pacing.wait_s()
            if wait_s == inf:
                self._busy_since_s = None
            return wait_s
        pass_started_s = self._clock()
        with_features = self.policy.wants_features or any(self._drafted)
        verdicts = self._passes.run(plan, self._drafted, with_features=with_features)
        ended_s = self._clock()
        pass_s, load, blocks = ended_s - pass_started_s, plan.load, plan.blocks
        self._load_meter.note_pass(load.num_prefill_tokens, pass_s)
        if blocks:
            self._note_step(pass_s)
        outcomes = Outcomes(blocks.uids, blocks.verify_lengths, verdicts.num_accepted[: len(blocks)])
        if self._busy_since_s is not None:
            self.policy.note_elapsed(ended_s - self._busy_since_s)
        self._busy_since_s = ended_s
        self.policy.note_pass(outcomes, load, ended_s - started_s)
        self.meter.note_pass(load.num_prefill_tokens, len(verdicts) - len(blocks))
        committing_from_s = self._clock()
        commits = self._committing.commit(plan, verdicts, self._drafted)
        self._drafted = []  # letting go of that is cheap while caches have it still
        if not with_features:
            self.drafters.hold_back(plan.sessions)
        self._ask_for_drafts(plan, commits)
        self.streams.write_gauges(self.metrics)
        self._passes.logprobs.attach(commits.outputs)
        self._deliver(commits.outputs)
        if blocks:
            self.metrics.note_phase(RoundPhase.PLAN, pass_started_s - started_s)
            self.metrics.note_phase(RoundPhase.VERIFY, pass_s)
            self.metrics.note_phase(RoundPhase.COMMIT, self._clock() - committing_from_s)
        return None

    def rest_s(self) -> float:
        """After a pass: the seconds for which no step can find anything to run unless something arrives or is
        submitted; 0 where only a step can tell."""
        num_running = len(self.streams.running)
        rest_s = 0.0 if self.streams.waiting else self._pacing.rest_s(num_running)
        if rest_s > 0.0:
            self.meter.advance(self._clock(), num_running)
        return rest_s

    def _plan(self) -> BatchPlan | None:
        """What runs now, with what it needs; None if that is nothing."""
        streams, most = self.streams, self._config.max_batch_tokens
        num_running = len(streams.running)
        if not streams.waiting and self._pacing.still_waits(num_running):
            self.meter.advance(self._clock(), num_running)
            return None
        decoding = streams.decoding
        self.meter.advance(self._clock(), len(decoding))
        ready = self._pacing.ready(decoding)
        self._drafted = self.drafters.blocks_of(ready)
        if not ready:
            has_prompts = streams.prefilling or streams.waiting
            most = self._pacing.prefill_room(most) if has_prompts else 0
            if not most:
                return None
        budget = Budget(
            free_pages=streams.prefix_cache.index.num_available,
            free_slots=streams.num_free_slots,
            max_batch_tokens=most,
            prefill_chunk_tokens=self._config.prefill_chunk_tokens,
        )
        blocks = BlockPlans(ready)
        blocks.verify_lengths = self._choose_verify_lengths(blocks, budget)
        plan = plan_batch(
            blocks, streams.running, streams.prefilling, streams.waiting, budget, streams.prefix_cache
        )
        if len(plan.blocks) < len(blocks):
            left = frozenset(plan.blocks.uids)
            self._drafted = [x for uid, x in zip(blocks.uids, self._drafted, strict=True) if uid in left]
        if plan.preempted or plan.chunks:
            self._apply(plan)
        else:
            streams.apply(plan)
        if plan.is_empty:  # what those that gave way held lets others run
            return self._plan() if plan.preempted else None
        return plan

    def _apply(self, plan: BatchPlan) -> None:
        """Apply a plan by which some requests begin or give way."""
        for session in plan.preempted:
            self.drafters.forget(session)
        self._pacing.forget(plan.preempted)
        self.metrics.preemptions_total += len(plan.preempted)
        admitted = [chunk.session for chunk in plan.chunks if chunk.session.cached_prompt_tokens is None]
        joining = [chunk.session for chunk in plan.chunks if chunk.session.phase is Phase.WAITING]
        self.streams.apply(plan)
        self.streams.write_gauges(self.metrics)  # a plan by which all give way is followed by no pass
        for session in [*plan.preempted, *joining]:
            self.streams.by_uid[session.uid].note_phase()
        if self.policy.drafts_newcomers:
            self.drafters.greet(joining)
        self.metrics.cached_prompt_tokens_total += sum(s.usage.cached_prompt_tokens for s in admitted)

    def _choose_verify_lengths(self, blocks: BlockPlans, budget: Budget) -> list[int]:
        cells = [() if block is None else block.cells for block in self._drafted]
        num_proposals = list(map(len, cells))
        # A drafter may send more than it was asked for.
        most = min([self._max_proposals, *blocks.num_useful])
        if max(num_proposals, default=0) > most:
            bounds = zip(num_proposals, blocks.num_useful, strict=True)
            num_proposals = [min(own, num_useful, self._max_proposals) for own, num_useful in bounds]
        if 0 in num_proposals:
            missing = [x for x, own in zip(blocks.sessions, num_proposals, strict=True) if own == 0]
            self.drafters.count_fallbacks([x for x in missing if self._pacing.is_drafted(x)])
        load = load_ahead(blocks, num_proposals, self.streams.prefilling, budget)
        are_greedy = self.streams.cohort(blocks.uids).are_greedy
        return self.policy.choose(Blocks(blocks.uids, num_proposals, cells, are_greedy), load)

    def _ask_for_drafts(self, plan: BatchPlan, commits: Commits) -> None:
        """Ask for the next blocks of all requests whose round or prefill has just ended."""
        self.policy.note_joining(self.streams.num_joining)
        if plan.chunks:
            self.drafters.receive()  # what drafters have of the prompts that this pass began with
        prefilling = [chunk.session for chunk in plan.chunks if chunk.session.phase is Phase.PREFILL]
        self._pacing.ask(commits.wanted, prefilling)

    def _end(self, uid: int, *, keep_state: bool) -> None:
        """Free everything a request holds, on both sides."""
        stream = self.streams.by_uid[uid]
        drafter = self.drafters.forget(stream.session)
        if stream.timeline is not None:
            stream.timeline.end(stream.session, drafter)
        self._pacing.forget([stream.session])
        self.policy.forget(uid)
        self.meter.note_end(stream.session.num_output)
        self.streams.remove(uid, keep_state=keep_state)
        self.metrics.finished_requests_total += 1

    def _draft_root_of(self, request: GenerateRequest) -> PageKey:
        return draft_root(
            self._target_fingerprint, self._drafter_fingerprint, self._config.dtype, request.cache_salt
        )

    def _note_step(self, taken_s: float) -> None:
        """A pass that decodes took so long."""
        average = self.drafters.plain_step_s or taken_s
        self.drafters.plain_step_s = average + _AVERAGE_WEIGHT * (taken_s - average)
