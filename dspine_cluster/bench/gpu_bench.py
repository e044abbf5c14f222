"""A pair on one device with running requests, and what a round does with them, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_models import Pair
from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.core.page_pool import num_pages_for, slot_of
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.blocks import BlockBatch, Distributions, Verdicts
from dspine_cluster.engine.draft_graphs import DraftGraphs, DraftPlace
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.sampling import verify
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext, DraftOutput
from dspine_cluster.types import SamplingParams, StopConditions

NUM_ACCEPTED = 5
"""Proposals that count as accepted in every round, about what is published; those of random weights never match."""
OFFICE = SamplingParams(temperature=1.0, top_p=0.95, top_k=20)
"""The sampling of the published office replay."""


@dataclass(frozen=True, slots=True)
class Request:
    """A running request."""

    tokens: list[int]
    """Committed tokens, the anchor last."""
    pages: list[int]
    state_slot: int

    @property
    def num_cached(self) -> int:
        return len(self.tokens) - 1


class Workbench:
    """Requests of one length, each with random cached keys, values, states and draft context.

    Every run leaves them where they were: nothing is committed, so the next run does the same work.
    """

    def __init__(self, pair: Pair, device: torch.device, *, max_requests: int, context_tokens: int) -> None:
        self.pair = pair
        self.device = device
        self.context_tokens = context_tokens
        self.generator = torch.Generator(device).manual_seed(1)
        block_size = pair.config.drafter.block_size
        pages = num_pages_for(context_tokens + block_size)
        num_pages = max_requests * pages
        self.engine = Engine(
            pair.target,
            num_pages=num_pages,
            num_slots=max_requests,
            projector=pair.projector,
            tapped_layers=pair.config.drafter.target_layer_ids,
            feature_size=pair.config.drafter.hidden_size,
            graph_buckets=GraphBuckets(max_requests, block_size),
        )
        self._graphs = self.engine.graphs
        self.draft_pool = DraftPool.create(pair.config.drafter, num_pages, torch.bfloat16, device)
        caches = (self.engine.kv_pool.keys, self.engine.kv_pool.values)
        features = (self.engine.feature_pool.rows, self.draft_pool.keys, self.draft_pool.values)
        for tensor in (*caches, *features):
            tensor.normal_(generator=self.generator)
        ids = torch.randint(
            pair.config.target.vocab_size - 1, (max_requests, context_tokens + 1), device=device
        )
        self._requests = [
            Request(tokens, list(range(i * pages, (i + 1) * pages)), self.engine.state_pool.allocate())
            for i, tokens in enumerate(ids.tolist())
        ]
        for tensor in self.engine.state_pool.live_tensors:
            tensor.normal_(std=0.1, generator=self.generator)
        proposals = torch.randint(pair.config.target.vocab_size - 1, (max_requests, block_size - 1))
        self._proposals: list[list[int]] = proposals.tolist()
        self._rules_by_sampling: dict[SamplingParams, list[LogitRules]] = {}
        self.draft_graphs = DraftGraphs(pair.drafter, self.draft_pool, max_blocks=max_requests)

    def plain(self, num_requests: int, *, graphed: bool) -> Tensor:
        """Logits after the anchors, nothing pending."""
        return self._logits(self.plain_segments(num_requests), num_pending=0, graphed=graphed)

    def verify(self, num_requests: int, *, graphed: bool) -> Tensor:
        """Logits of full blocks, after a round that accepted some proposals."""
        segments = self.block_segments(num_requests, self._proposals[:num_requests])
        return self._logits(segments, num_pending=NUM_ACCEPTED, graphed=graphed)

    def plain_segments(self, num_requests: int) -> list[Segment]:
        return self.block_segments(num_requests, [[]] * num_requests)

    def block_segments(
        self, num_requests: int, proposals: Sequence[Sequence[int]] | None = None
    ) -> list[Segment]:
        """Anchors with `proposals`, or with full blocks of them."""
        requests = self._requests[:num_requests]
        proposals = self._proposals[:num_requests] if proposals is None else proposals
        return [
            Segment([r.tokens[-1], *tokens], r.num_cached, r.pages, r.state_slot)
            for r, tokens in zip(requests, proposals, strict=True)
        ]

    def run_pass(self, segments: Sequence[Segment], *, num_pending: int, graphed: bool) -> Tensor:
        """Final hidden states, in padded buffers or packed anew."""
        for segment in segments:
            self.engine.state_pool.set_pending(segment.state_slot, num_pending)
        self.engine.graphs = self._graphs if graphed else None
        return self.engine.forward(PackedRows.of(segments))

    def is_recorded(self, segments: Sequence[Segment], *, num_pending: int) -> bool:
        """Whether such a pass is replayed by now."""
        for segment in segments:
            self.engine.state_pool.set_pending(segment.state_slot, num_pending)
        return self._graphs is not None and self._graphs.is_recorded(PackedRows.of(segments))

    def _logits(self, segments: Sequence[Segment], *, num_pending: int, graphed: bool) -> Tensor:
        return self.engine.logits(self.run_pass(segments, num_pending=num_pending, graphed=graphed))

    def draft(self, num_requests: int, *, graphed: bool) -> DraftOutput:
        """Proposals of all requests, sampled."""
        drafter, sampling = self.pair.drafter, self.sampling(num_requests)
        if not graphed:
            return drafter.draft(*self.draft_inputs(num_requests), sampling)
        found = self.draft_graphs.candidates(self.draft_places(num_requests))
        assert found is not None
        return drafter.walk(*found, sampling)

    def draft_places(self, num_requests: int) -> list[DraftPlace]:
        return [
            DraftPlace(r.tokens[-1], r.num_cached, r.pages, first_page=0, start=self._context_start)
            for r in self._requests[:num_requests]
        ]

    @property
    def _context_start(self) -> int:
        """Where the context begins that the drafter still sees."""
        window = self.pair.config.drafter.context_window
        return max(0, self.context_tokens - window + 1) if window else 0

    def draft_inputs(self, num_requests: int) -> tuple[Tensor, Tensor, DraftContext]:
        """Anchors, their positions, and all context that the drafter still sees."""
        requests = self._requests[:num_requests]
        tables = torch.tensor([request.pages for request in requests], device=self.device)
        context = DraftContext(
            key_pages=self.draft_pool.keys,
            value_pages=self.draft_pool.values,
            page_table=tables,
            first_pages=self._longs([0] * num_requests),
            starts=self._longs([self._context_start] * num_requests),
        )
        anchors = self._longs([request.tokens[-1] for request in requests])
        return anchors, self._longs([request.num_cached for request in requests]), context

    def sampling(self, num_requests: int) -> DraftSampling:
        """Of drafts: unseeded, at temperature 1."""
        greedy = DraftSampling.greedy(num_requests, self.device)
        temperature = torch.ones_like(greedy.temperature)
        return replace(
            greedy, temperature=temperature, generator=self.generator, is_greedy=False, is_unseeded=True
        )

    def blocks(
        self, num_requests: int, sampling: SamplingParams, drafts: DraftOutput | None = None
    ) -> BlockBatch:
        """What is verified: proposals, and where they were drafted the distributions that they were drawn from, which
        come by way of the host as those of a drafter elsewhere do."""
        batch = BlockBatch()
        members = zip(self._requests[:num_requests], self._rules(sampling), strict=False)
        if drafts is None:
            for (request, rules), proposals in zip(members, self._proposals, strict=False):
                batch.append(rules, request.tokens, proposals)
            return batch
        tokens, candidates, probs = drafts.tokens.tolist(), drafts.candidates.cpu(), drafts.probs.cpu()
        for i, (request, rules) in enumerate(members):
            batch.append(rules, request.tokens, tokens[i], Distributions(candidates[i], probs[i]))
        return batch

    def _rules(self, sampling: SamplingParams) -> list[LogitRules]:
        """Of every request, made once as when they are admitted."""
        if sampling not in self._rules_by_sampling:
            self._rules_by_sampling[sampling] = [
                LogitRules(
                    sampling,
                    StopConditions(max_tokens=1024),
                    num_prompt_tokens=self.context_tokens,
                    eos_token_ids=(),
                    mask_token_id=None,
                    vocab_size=self.pair.config.target.vocab_size,
                    device=self.device,
                )
                for _ in self._requests
            ]
        return self._rules_by_sampling[sampling]

    def head_and_accept(self, hidden: Tensor, blocks: BlockBatch) -> Verdicts:
        """What follows a verify pass, as much at once as an engine does."""
        return verify(lambda start, end: self.engine.logits(hidden[start:end]), blocks, self.generator)

    def accept(self, logits: Tensor, blocks: BlockBatch) -> Verdicts:
        """Acceptance alone."""
        return verify(lambda start, end: logits[start:end], blocks, self.generator)

    def ingest_inputs(self, num_requests: int) -> tuple[Tensor, Tensor]:
        """Feature rows' slots and positions of what a round commits."""
        positions = range(self.context_tokens, self.context_tokens + NUM_ACCEPTED + 1)
        slots = [slot_of(request.pages, p) for request in self._requests[:num_requests] for p in positions]
        return self._longs(slots), self._longs([*positions] * num_requests)

    @torch.inference_mode()
    def ingest(self, slots: Tensor, positions: Tensor) -> None:
        """Features of committed tokens into the draft context."""
        keys, values = self.pair.drafter.project_context(self.engine.feature_pool.rows[slots], positions)
        self.draft_pool.write(slots, keys, values)

    def _longs(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
