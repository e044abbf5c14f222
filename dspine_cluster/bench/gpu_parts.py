"""The parts of a round that `gpu_round` measures, most important first, each with its floor's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from dspine_cluster.bench import gpu_floors as floors
from dspine_cluster.bench.gpu_bench import NUM_ACCEPTED, OFFICE, Workbench
from dspine_cluster.bench.gpu_floors import PassShape, Work
from dspine_cluster.types import SamplingParams

Run = Callable[[], object]
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Part:
    """Something to time."""

    name: str
    num_requests: int
    num_tokens: int
    """Tokens that pass through the target, or are drafted, injected, scored, judged or ingested."""
    work: Work
    run: Run
    """Launch by launch."""
    run_graphed: Run | None = None
    """The same with CUDA graphs; None where the host decides between launches."""


def all_parts(bench: Workbench, batches: tuple[int, ...]) -> Iterator[Part]:
    """Parts at every batch size, the first of which matters most. Made one at a time, for they hold memory."""
    for num_requests in batches:
        yield from _whole(bench, num_requests)
    for num_requests in batches:
        yield from _pieces(bench, num_requests)


def _whole(bench: Workbench, num_requests: int) -> Iterator[Part]:
    config, drafter = bench.pair.config, bench.pair.config.drafter
    block_size, context = drafter.block_size, bench.context_tokens
    num_rows = num_requests * block_size

    plain = PassShape(num_requests, 1, context)
    yield Part(
        "plain",
        num_requests,
        num_requests,
        _pass_work(bench, plain),
        lambda: bench.engine.logits(bench.plain_pass(num_requests)),
    )
    block = PassShape(num_requests, block_size, context, NUM_ACCEPTED)
    yield Part(
        "verify",
        num_requests,
        num_rows,
        _pass_work(bench, block),
        lambda: bench.engine.logits(bench.verify_pass(num_requests)),
    )
    inputs, sampling = bench.draft_inputs(num_requests), bench.sampling(num_requests)
    draft_work = floors.draft(drafter, num_requests, context)
    yield Part(
        "draft", num_requests, num_rows, draft_work, lambda: bench.pair.drafter.draft(*inputs, sampling)
    )
    ingested = bench.ingest_inputs(num_requests)
    num_committed = num_requests * (NUM_ACCEPTED + 1)

    def one_round() -> None:
        drafts = bench.pair.drafter.draft(*inputs, sampling)
        blocks = bench.blocks(num_requests, OFFICE, drafts)
        hidden = bench.run_pass(num_requests, [block.proposals for block in blocks], num_pending=NUM_ACCEPTED)
        bench.accept(hidden, blocks)
        bench.ingest(*ingested)

    acceptance = floors.acceptance(config.target, num_rows)
    round_work = draft_work + _pass_work(bench, block) + acceptance + floors.ingest(drafter, num_committed)
    yield Part("round", num_requests, num_rows, round_work, one_round)


def _pieces(bench: Workbench, num_requests: int) -> Iterator[Part]:
    drafter, config = bench.pair.drafter, bench.pair.config.drafter
    num_rows = num_requests * config.block_size
    anchors, _, _ = bench.draft_inputs(num_requests)
    sampling = bench.sampling(num_requests)
    shape = (num_requests, config.block_size, config.hidden_size)
    states = torch.randn(shape, dtype=torch.bfloat16, device=bench.device)

    def inject() -> None:
        hidden = states
        for layer in range(config.num_layers):
            hidden = drafter.inject(layer, hidden, anchors)

    yield Part("injection", num_requests, num_rows, floors.injection(config, num_requests), inject)
    shape = (num_requests, config.num_proposals, config.top_k)
    candidates = torch.randint(config.vocab_size, shape, device=bench.device)
    logits = torch.randn(shape, device=bench.device)

    def score_and_walk() -> None:
        drafter.walk(candidates, drafter.rows(states[:, 1:], anchors, candidates, logits), sampling)

    work = floors.transition(config, num_requests)
    yield Part("transition", num_requests, num_rows, work, score_and_walk)
    hidden = torch.randn(num_rows, config.hidden_size, dtype=torch.bfloat16, device=bench.device)
    target = bench.pair.config.target
    head = floors.head(target, num_rows)
    yield Part("head", num_requests, num_rows, head, lambda: bench.engine.logits(hidden))
    for name, params in (("accept greedy", GREEDY), ("accept sampled", OFFICE)):
        blocks = bench.blocks(num_requests, params)
        work = head + floors.acceptance(target, num_rows)
        yield Part(name, num_requests, num_rows, work, lambda blocks=blocks: bench.accept(hidden, blocks))
    ingested = bench.ingest_inputs(num_requests)
    num_committed = len(ingested[0])
    work = floors.ingest(config, num_committed)
    yield Part("ingest", num_requests, num_committed, work, lambda: bench.ingest(*ingested))


def _pass_work(bench: Workbench, shape: PassShape) -> Work:
    """Layers, features and head of a pass."""
    config = bench.pair.config
    return (
        floors.target_pass(config.target, shape)
        + floors.projector(config.drafter, shape.num_tokens)
        + floors.head(config.target, shape.num_tokens)
    )
