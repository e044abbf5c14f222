"""Whatever happens to requests, pages and slots in use are exactly those of running ones."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dspine_cluster.core.batch_planner import Budget, plan_batch
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.pools import StatePool
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.detokenizer import Detokenizer, TokenBytes
from dspine_cluster.verifier.streams import Stream, Streams
from tests.verifier.harness import byte_tokenizer, hybrid_config

NUM_PAGES = 24
TOKEN_BYTES = TokenBytes(byte_tokenizer())


def make_stream(uid: int, num_prompt: int, priority: int) -> Stream:
    stop = StopConditions(max_tokens=200)
    sampling = SamplingParams(temperature=0.0)
    request = GenerateRequest(str(uid), (1,) * num_prompt, sampling, stop, priority=priority)
    rules = LogitRules(
        sampling,
        stop,
        num_prompt_tokens=num_prompt,
        eos_token_ids=(),
        mask_token_id=None,
        vocab_size=300,
        device=torch.device("cpu"),
    )
    return Stream(Session(uid, request, arrival=uid), Detokenizer(TOKEN_BYTES), rules)


class StreamsMachine(RuleBasedStateMachine):
    """Random arrivals, passes with random acceptance, ends and aborts, in a pool that is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        state_pool = StatePool(hybrid_config(), 4, torch.float32, torch.device("cpu"))
        self.streams = Streams(PagePool(NUM_PAGES), state_pool)
        self.next_uid = 0

    @rule(num_prompt=st.integers(1, 300), priority=st.integers(0, 2))
    def arrive(self, num_prompt: int, priority: int) -> None:
        self.streams.add(make_stream(self.next_uid, num_prompt, priority))
        self.next_uid += 1

    @rule(lengths=st.lists(st.integers(0, 15), min_size=4, max_size=4), accepted=st.integers(0, 15))
    def run_a_pass(self, lengths: list[int], accepted: int) -> None:
        budget = Budget(self.streams.page_pool.num_free, self.streams.num_free_slots, 256, 64)
        ready = list(zip(self.streams.decoding, lengths, strict=False))
        plan = plan_batch(ready, self.streams.running, self.streams.waiting, budget)
        self.streams.apply(plan)
        for block in plan.blocks:
            num_accepted = min(accepted, block.verify_length)
            block.session.commit_round(
                [2] * (num_accepted + 1),
                num_proposed=15,
                num_verified=block.verify_length,
                num_accepted=num_accepted,
            )
            if len(block.session.tokens) > 350:
                self.streams.remove(block.session.uid)
        for chunk in plan.chunks:
            completes = chunk.completes_prefill
            chunk.session.advance_prefill(chunk.num_tokens)
            if completes:
                chunk.session.commit_first(2)

    @precondition(lambda self: bool(len(self.streams)))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sessions = [*self.streams.running, *self.streams.waiting]
        self.streams.remove(data.draw(st.sampled_from(sorted(s.uid for s in sessions))))

    @invariant()
    def nothing_leaks(self) -> None:
        self.streams.check_integrity()

    @invariant()
    def waiting_requests_hold_nothing(self) -> None:
        assert all(not s.pages and s.phase is Phase.WAITING for s in self.streams.waiting)

    def teardown(self) -> None:
        """After everybody has left, all is free."""
        for session in [*self.streams.running, *self.streams.waiting]:
            self.streams.remove(session.uid)
        assert self.streams.page_pool.num_free == NUM_PAGES
        assert self.streams.num_free_slots == 4


StreamsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
test_streams = StreamsMachine.TestCase
