"""Random requests over the real streams and caches, with a record of what every page and state would hold."""

from __future__ import annotations

import random
from collections import Counter

import torch

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.batch_planner import Budget, plan_batch, proposal_room
from dspine_cluster.core.page_hash import root_key
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.prefix_cache import PrefixCache
from dspine_cluster.core.prefix_index import PrefixIndex
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.pools import StatePool
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.detokenizer import Detokenizer
from dspine_cluster.verifier.streams import Stream, Streams
from tests.verifier.harness import byte_tokenizer, hybrid_config

TOKEN_BYTES = TokenBytes(byte_tokenizer())
MAX_TOKENS = 400
GARBAGE = -1


def make_stream(uid: int, request: GenerateRequest) -> Stream:
    rules = LogitRules(
        request.sampling,
        request.stop,
        num_prompt_tokens=len(request.prompt_ids),
        eos_token_ids=(),
        mask_token_id=None,
        vocab_size=300,
        device=torch.device("cpu"),
    )
    session = Session(uid, request, arrival=uid, root=root_key(request.cache_salt))
    return Stream(session, Detokenizer(TOKEN_BYTES), rules, frozenset())


class ShadowMemory:
    """Holds, instead of K/V and features, an identity of the prefix that each position belongs to."""

    def __init__(self, num_pages: int) -> None:
        self.rows = [[GARBAGE] * PAGE_TOKENS for _ in range(num_pages)]
        self.states: dict[int, tuple[int, int]] = {}
        """Slot -> (length of the prefix, its identity)."""
        self.checkpoints: dict[int, tuple[int, int]] = {}

    def copy_page(self, source: int, target: int) -> None:
        self.rows[target] = list(self.rows[source])

    def complete_page(self, source: int, target: int) -> None:
        assert self.rows[source] == self.rows[target]

    def save_state(self, slot: int, checkpoint: int) -> None:
        self.checkpoints[checkpoint] = self.states[slot]

    def load_state(self, checkpoint: int, slot: int) -> None:
        self.states[slot] = self.checkpoints[checkpoint]


class RandomStreams:
    """Arrivals, passes, ends, aborts, evictions, preemptions and lost drafters, in a pool too small for all."""

    def __init__(
        self,
        seed: int,
        *,
        has_states: bool,
        num_pages: int = 60,
        num_slots: int = 4,
        num_checkpoints: int = 8,
    ) -> None:
        self.random = random.Random(seed)
        self.memory = ShadowMemory(num_pages)
        self.index = PrefixIndex(
            PagePool(num_pages), has_states=has_states, max_checkpoints=num_checkpoints if has_states else 0
        )
        self.has_states = has_states
        cache = PrefixCache(self.index, self.memory, has_states=has_states)
        state_pool = StatePool(hybrid_config(), num_slots, torch.float32, torch.device("cpu"))
        self.streams = Streams(cache, state_pool)
        self.counts: Counter[str] = Counter()
        self.published: set[bytes] = set()
        self._next_uid = 0
        self._plain_passes = 0
        self._identities: dict[int, list[int]] = {}
        self._texts = [self._tokens(MAX_TOKENS) for _ in range(3)]
        """What prompts begin with: documents, then conversations that have been answered."""

    def step(self) -> None:
        """One random event, then every check."""
        kinds = ["arrive"] * 2 + ["run_pass"] * 14 + ["abort", "evict", "preempt", "lose_drafter"]
        getattr(self, self.random.choice(kinds))()
        self.check()

    def arrive(self) -> None:
        text = self.random.choice(self._texts)
        prompt = [*text[: self.random.randint(0, len(text))], *self._tokens(self.random.randint(1, 60))]
        prompt = prompt[:MAX_TOKENS]
        boundaries = sorted(self.random.randint(1, len(prompt)) for _ in range(self.random.randint(0, 4)))
        request = GenerateRequest(
            str(self._next_uid),
            tuple(prompt),
            SamplingParams(temperature=0.0),
            StopConditions(max_tokens=200),
            priority=self.random.randint(0, 2),
            message_boundaries=tuple(boundaries),
            cache_salt=self.random.choice(["", "", "tenant"]),
        )
        self.streams.add(make_stream(self._next_uid, request))
        self._next_uid += 1
        self.counts["arrivals"] += 1

    def run_pass(self) -> None:
        ready = [s for s in self.streams.decoding if self.random.random() < 0.8]
        lengths = [0 if self._plain_passes else self.random.randint(0, 15) for _ in ready]
        self._plain_passes = max(0, self._plain_passes - 1)
        budget = Budget(
            self.index.num_available,
            self.streams.num_free_slots,
            max_batch_tokens=256,
            prefill_chunk_tokens=128,
        )
        blocks = BlockPlans(ready, lengths)
        if sum(lengths) > proposal_room(blocks, lengths, budget):
            blocks.verify_lengths = [0] * len(ready)
        plan = plan_batch(
            blocks,
            self.streams.running,
            self.streams.prefilling,
            self.streams.waiting,
            budget,
            self.streams.prefix_cache,
        )
        self._apply(plan)
        for session, length in zip(plan.blocks.sessions, plan.blocks.verify_lengths, strict=True):
            self._run_block(session, length)
        for chunk in plan.chunks:
            self._run_chunk(chunk.session, chunk.num_tokens)

    def abort(self) -> None:
        session = self._any([*self.streams.running, *self.streams.waiting])
        if session is not None:
            self.streams.remove(session.uid, keep_state=False)
            self.counts["aborts"] += 1

    def evict(self) -> None:
        pages = self.index.allocate(self.random.randint(0, self.index.num_available))
        for page in pages:
            self.memory.rows[page] = [GARBAGE] * PAGE_TOKENS
        self.index.release(pages)
        self.counts["evictions"] += 1

    def preempt(self) -> None:
        session = self._any(self.streams.running)
        if session is not None:
            self._apply(BatchPlan(preempted=[session]))

    def lose_drafter(self) -> None:
        """The next passes decode plainly, and the features of everything computed are read to attach elsewhere."""
        self._plain_passes = self.random.randint(1, 5)
        for session in self.streams.running:
            self._check_content(session)
        self.counts["drafter losses"] += 1

    def drain(self) -> None:
        """Everybody leaves."""
        for session in [*self.streams.running, *self.streams.waiting]:
            self.streams.remove(session.uid, keep_state=self.random.random() < 0.5)

    def check(self) -> None:
        self.streams.check_integrity()
        assert all(not s.pages and s.phase is Phase.WAITING for s in self.streams.waiting)
        added, removed = self.index.events.take()
        assert removed <= self.published
        assert not added & self.published
        self.published = (self.published - removed) | added
        assert self.published == self.index.events.present

    def _apply(self, plan: BatchPlan) -> None:
        admitted = [chunk for chunk in plan.chunks if chunk.resume is not None]
        self.streams.apply(plan)
        for chunk in admitted:
            session, match = chunk.session, chunk.resume.match if chunk.resume else None
            assert match is not None
            assert match.num_tokens < len(session.tokens)
            assert session.state_slot is not None
            if match.checkpoint is None:
                self.memory.states[session.state_slot] = (0, hash(session.root))
            self.counts["cached tokens"] += match.num_tokens
            self.counts["tail copies"] += match.tail_page is not None
            self._check_content(session)
        self.counts["preemptions"] += len(plan.preempted)

    def _run_chunk(self, session: Session, num_tokens: int) -> None:
        self._check_content(session)
        end = session.num_computed + num_tokens
        self._write(session, session.num_computed, end, num_right=num_tokens)
        self._set_state(session, end)
        session.advance_prefill(num_tokens)
        self.streams.prefix_cache.note_computed(session)
        self.counts["chunks"] += 1
        if session.num_computed == len(session.tokens):
            self.streams.commit_first(session, self._tokens(1)[0])
            self._go_on_or_end(session)

    def _run_block(self, session: Session, verify_length: int) -> None:
        self._check_content(session)
        num_accepted = self.random.randint(0, verify_length)
        start = session.num_computed
        tokens = self._tokens(num_accepted + 1)
        session.commit_round(tokens, num_proposed=15, num_verified=verify_length, num_accepted=num_accepted)
        self._set_state(session, start + 1)  # the pass replays what was pending and goes on to the anchor
        self._write(session, start, start + 1 + verify_length, num_right=1 + num_accepted)
        self.counts["accepted"] += num_accepted
        self._go_on_or_end(session)

    def _go_on_or_end(self, session: Session) -> None:
        if len(session.tokens) > MAX_TOKENS or self.random.random() < 0.05:
            self._texts = [*self._texts[:3], *self._texts[3:][-4:], list(session.tokens)]
            self.streams.remove(session.uid, keep_state=True)
            self.counts["ends"] += 1
        else:
            self.streams.prefix_cache.note_computed(session)

    def _write(self, session: Session, start: int, end: int, *, num_right: int) -> None:
        identities = self._prefix_identities(session)
        for position in range(start, end):
            page = session.pages[position // PAGE_TOKENS]
            assert self.index.num_holders(page) == 1, "a shared page is written"
            assert not self.index.is_indexed(page), "a cached page is written"
            is_right = position < start + num_right
            self.memory.rows[page][position % PAGE_TOKENS] = identities[position] if is_right else GARBAGE

    def _set_state(self, session: Session, length: int) -> None:
        assert session.state_slot is not None
        self.memory.states[session.state_slot] = (length, self._identity(session, length))

    def _check_content(self, session: Session) -> None:
        """What the session reads is its own prefix."""
        identities = self._prefix_identities(session)
        for position in range(session.num_computed):
            row = self.memory.rows[session.pages[position // PAGE_TOKENS]][position % PAGE_TOKENS]
            assert row == identities[position], f"position {position} holds another prefix"
        if self.has_states:
            assert session.state_slot is not None
            length = session.num_in_state
            assert self.memory.states[session.state_slot] == (length, self._identity(session, length))

    def _identity(self, session: Session, length: int) -> int:
        return self._prefix_identities(session)[length - 1] if length else hash(session.root)

    def _prefix_identities(self, session: Session) -> list[int]:
        identities = self._identities.setdefault(session.uid, [])
        for position in range(len(identities), len(session.tokens)):
            before = identities[-1] if identities else hash(session.root)
            identities.append(hash((before, session.tokens[position])))
        return identities

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randint(0, 255) for _ in range(count)]

    def _any(self, sessions: list[Session]) -> Session | None:
        return self.random.choice(sessions) if sessions else None
