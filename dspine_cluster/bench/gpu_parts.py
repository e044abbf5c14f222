"""The parts of a round that `gpu_round` measures, most important first, each with its floor's work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine_cluster.bench import gpu_floors as floors
from dspine_cluster.bench.gpu_bench import NUM_ACCEPTED, OFFICE, Workbench
from dspine_cluster.bench.gpu_floors import PassShape, Work
from dspine_cluster.engine.graphs import GraphCache
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
    """The same with CUDA graphs; None where there is nothing to record."""
    is_recorded: Callable[[], bool] = lambda: False
    """Whether, by now, `run_graphed` replays what was recorded."""


def all_parts(bench: Workbench, batches: tuple[int, ...]) -> Iterator[Part]:
    """Parts at every batch size, the first of which matters most. Made one at a time, for they hold memory."""
    for num_requests in batches:
        yield from _whole(bench, num_requests)
    for num_requests in batches:
        yield from _pieces(bench, num_requests)


def _whole(bench: Workbench, num_requests: int) -> Iterator[Part]:
    drafter, context = bench.pair.config.drafter, bench.context_tokens
    num_rows = num_requests * drafter.block_size
    plain = bench.plain_segments(num_requests)
    yield Part(
        "plain",
        num_requests,
        num_requests,
        _pass_work(bench, PassShape(num_requests, 1, context)),
        lambda: bench.plain(num_requests, graphed=False),
        lambda: bench.plain(num_requests, graphed=True),
        lambda: bench.is_recorded(plain, num_pending=0),
    )
    verify_work = _pass_work(bench, PassShape(num_requests, drafter.block_size, context, NUM_ACCEPTED))
    blocks = bench.block_segments(num_requests)

    def is_pass_recorded() -> bool:
        return bench.is_recorded(blocks, num_pending=NUM_ACCEPTED)

    yield Part(
        "verify",
        num_requests,
        num_rows,
        verify_work,
        lambda: bench.verify(num_requests, graphed=False),
        lambda: bench.verify(num_requests, graphed=True),
        is_pass_recorded,
    )
    draft_work = floors.draft(drafter, num_requests, context)
    places = bench.draft_places(num_requests)
    yield Part(
        "draft",
        num_requests,
        num_rows,
        draft_work,
        lambda: bench.draft(num_requests, graphed=False),
        lambda: bench.draft(num_requests, graphed=True),
        lambda: bench.draft_graphs.is_recorded(places),
    )
    acceptance = floors.acceptance(bench.pair.config.target, num_rows)
    ingest = floors.ingest(drafter, num_requests * (NUM_ACCEPTED + 1))
    yield Part(
        "round",
        num_requests,
        num_rows,
        draft_work + verify_work + acceptance + ingest,
        _round(bench, num_requests, graphed=False),
        _round(bench, num_requests, graphed=True),
        is_pass_recorded,
    )


def _round(bench: Workbench, num_requests: int, *, graphed: bool) -> Run:
    """Draft, verify, accept, and give the drafter the features of what counts as accepted."""
    ingested = bench.ingest_inputs(num_requests)

    def run() -> None:
        blocks = bench.blocks(num_requests, OFFICE, bench.draft(num_requests, graphed=graphed))
        segments = bench.block_segments(num_requests, blocks.proposals)
        hidden = bench.run_pass(segments, num_pending=NUM_ACCEPTED, graphed=graphed)
        bench.head_and_accept(hidden, blocks)
        bench.ingest(*ingested)

    return run


def _pieces(bench: Workbench, num_requests: int) -> Iterator[Part]:
    drafter, config = bench.pair.drafter, bench.pair.config.drafter
    num_rows = num_requests * config.block_size
    graphs: GraphCache[str, object] = GraphCache(bench.device)

    def piece(name: str, num_tokens: int, work: Work, run: Run) -> Part:
        return Part(
            name,
            num_requests,
            num_tokens,
            work,
            run,
            lambda: graphs.run(name, run),
            lambda: graphs.is_recorded(name),
        )

    anchors, _, _ = bench.draft_inputs(num_requests)
    sampling = bench.sampling(num_requests)
    shape = (num_requests, config.block_size, config.hidden_size)
    states = torch.randn(shape, dtype=torch.bfloat16, device=bench.device)

    def inject() -> Tensor:
        hidden = states
        for layer in range(config.num_layers):
            hidden = drafter.inject(layer, hidden, anchors)
        return hidden

    yield piece("injection", num_rows, floors.injection(config, num_requests), inject)
    shape = (num_requests, config.num_proposals, config.top_k)
    candidates = torch.randint(config.vocab_size, shape, device=bench.device)
    logits = torch.randn(shape, device=bench.device)

    def scores() -> Tensor:
        return drafter.rows(states[:, 1:], anchors, candidates, logits)

    yield piece("transition", num_rows, floors.transition(config, num_requests), scores)
    rows = scores()
    yield Part("walk", num_requests, num_rows, Work(), lambda: drafter.walk(candidates, rows, sampling))
    slots, positions = bench.ingest_inputs(num_requests)
    work = floors.ingest(config, len(slots))
    yield piece("ingest", len(slots), work, lambda: bench.ingest(slots, positions))
    hidden = torch.randn(num_rows, config.hidden_size, dtype=torch.bfloat16, device=bench.device)
    target = bench.pair.config.target
    head = floors.head(target, num_rows)
    yield Part("head", num_requests, num_rows, head, lambda: bench.engine.logits(hidden))
    target_logits = bench.engine.logits(hidden)
    work = floors.acceptance(target, num_rows)
    for name, params in (("accept greedy", GREEDY), ("accept sampled", OFFICE)):
        accept = functools.partial(bench.accept, target_logits, bench.blocks(num_requests, params))
        yield Part(name, num_requests, num_rows, work, accept)


def _pass_work(bench: Workbench, shape: PassShape) -> Work:
    """Layers, features and head of a pass."""
    config = bench.pair.config
    return (
        floors.target_pass(config.target, shape)
        + floors.projector(config.drafter, shape.num_tokens)
        + floors.head(config.target, shape.num_tokens)
    )
