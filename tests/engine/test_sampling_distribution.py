"""Unseeded and seeded sampling against exact distributions, and that the test sees rules that are wrong."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from dspine_cluster.engine.blocks import Distributions, draft_distributions
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams, StopConditions
from tests.engine.block_cases import Block, Verdict, batch_of, verify_each

VOCAB_SIZE = 6
LENGTH = 3
NUM_STREAMS = 3000
PROMPT = (0,)
"""Which the target does not look at."""

Decide = Callable[[Tensor, list[Block]], list[Verdict]]


def _table(seed: int) -> Tensor:
    """Logits after each pair of previous tokens, -1 being "before the start": [7, 7, 6]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB_SIZE + 1, VOCAB_SIZE + 1, VOCAB_SIZE, generator=generator) * 1.5


TARGET = _table(0)


def _context(tokens: Sequence[int]) -> tuple[int, int]:
    before_last, last = (-1, -1, *tokens)[-2:]
    return before_last, last


@cache
def _exact(params: SamplingParams, context: tuple[int, int]) -> list[float]:
    logits = (TARGET[context].double() / params.temperature).tolist()
    support = sorted(range(VOCAB_SIZE), key=lambda token: -logits[token])[: params.top_k or None]
    weights = {token: math.exp(logits[token]) for token in support}
    mass, kept = 0.0, {}
    for token, weight in weights.items():
        if mass < params.top_p * sum(weights.values()):
            kept[token] = weight
        mass += weight
    kept = {token: weight for token, weight in kept.items() if weight >= params.min_p * max(kept.values())}
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(VOCAB_SIZE)]


@dataclass(frozen=True)
class Draft:
    """A drafter: the distribution q it reports after a context, and the one it really samples from."""

    reported: Callable[[tuple[int, int]], list[float]]
    sampled: Callable[[tuple[int, int]], list[float]]


def _honest(reported: Callable[[tuple[int, int]], list[float]]) -> Draft:
    return Draft(reported, reported)


def _softmax(logits: Tensor) -> list[float]:
    probs: list[float] = logits.double().softmax(-1).tolist()
    return probs


_OTHER = _table(1)


@cache
def _sparse(context: tuple[int, int]) -> list[float]:
    """A target half remembered, with half of the vocabulary."""
    logits = TARGET[context] + _OTHER[context]
    return _softmax(torch.where(logits >= logits.median(), logits, -torch.inf))


@cache
def _tiny(context: tuple[int, int]) -> list[float]:
    """Nearly all mass on the target's least likely token, which filters often exclude, a little on the rest."""
    probs = [1e-3 / (VOCAB_SIZE - 1)] * VOCAB_SIZE
    probs[int(TARGET[context].argmin())] = 1.0 - 1e-3
    return probs


@cache
def _certain(context: tuple[int, int]) -> list[float]:
    """Always the runner-up."""
    runner_up = int(TARGET[context].topk(2).indices[1])
    return [float(token == runner_up) for token in range(VOCAB_SIZE)]


DRAFTS = {
    "sparse": _honest(_sparse),
    "wrong": _honest(cache(lambda context: _softmax(_OTHER[context]))),
    "tiny": _honest(_tiny),
    "certain": _honest(_certain),
}
FILTERS = {
    "none": SamplingParams(),
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.8),
    "all": SamplingParams(top_k=4, top_p=0.9, min_p=0.1),
}


def _rules(params: SamplingParams) -> LogitRules:
    return LogitRules(
        params,
        StopConditions(max_tokens=100),
        num_prompt_tokens=len(PROMPT),
        eos_token_ids=[],
        mask_token_id=None,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
    )


def _block(
    rules: LogitRules, tokens: tuple[int, ...], draft: Draft, num_proposals: int, rng: random.Random
) -> Block:
    proposals: list[int] = []
    reported = []
    for _ in range(num_proposals):
        context = _context((*tokens, *proposals))
        reported.append(draft.reported(context))
        proposals.append(rng.choices(range(VOCAB_SIZE), draft.sampled(context))[0])
    if num_proposals == 0:
        return Block(rules, PROMPT + tokens)
    candidates = torch.arange(VOCAB_SIZE).expand(num_proposals, -1)
    drafted = Distributions(candidates, torch.tensor(reported, dtype=torch.float32))
    return Block(rules, PROMPT + tokens, proposals, drafted)


def _logits(blocks: Sequence[Block]) -> Tensor:
    contexts = [
        _context((*block.token_ids[1:], *block.proposals[:row]))
        for block in blocks
        for row in range(block.num_rows)
    ]
    before_last, last = torch.tensor(contexts).unbind(-1)
    return TARGET[before_last, last]


def _sample_streams(params: SamplingParams, draft: Draft, decide: Decide) -> Counter[tuple[int, ...]]:
    """The first LENGTH tokens of many streams, each round verifying 0 to 3 proposals."""
    rng = random.Random(5)
    rules = _rules(params)
    done: Counter[tuple[int, ...]] = Counter()
    streams: list[tuple[int, ...]] = [()] * NUM_STREAMS
    while streams:
        blocks = [_block(rules, tokens, draft, rng.randrange(4), rng) for tokens in streams]
        verdicts = decide(_logits(blocks), blocks)
        streams = [(*tokens, *verdict.token_ids) for tokens, verdict in zip(streams, verdicts, strict=True)]
        done.update(tokens[:LENGTH] for tokens in streams if len(tokens) >= LENGTH)
        streams = [tokens for tokens in streams if len(tokens) < LENGTH]
    return done


def _p_value(params: SamplingParams, counts: Counter[tuple[int, ...]], length: int = LENGTH) -> float:
    """Chi-square test of the joint distribution of the first `length` tokens, rare outcomes pooled."""
    observed: Counter[tuple[int, ...]] = Counter()
    for tokens, count in counts.items():
        observed[tokens[:length]] += count
    total = counts.total()
    cells: list[tuple[float, int]] = []
    pooled_expected, pooled_observed = 0.0, 0
    for tokens in itertools.product(range(VOCAB_SIZE), repeat=length):
        prob = math.prod(_exact(params, _context(tokens[:i]))[tokens[i]] for i in range(length))
        if prob == 0.0 and observed[tokens]:
            return 0.0
        if prob * total < 5.0:
            pooled_expected += prob * total
            pooled_observed += observed[tokens]
        else:
            cells.append((prob * total, observed[tokens]))
    if pooled_expected > 0.0:
        cells.append((pooled_expected, pooled_observed))
    if len(cells) == 1:
        return 1.0
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    degrees = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def _right() -> Decide:
    generator = torch.Generator().manual_seed(3)

    def decide(logits: Tensor, blocks: list[Block]) -> list[Verdict]:
        return verify_each(logits, blocks, generator, max_rows=100_000)

    return decide


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_unseeded_output_has_the_targets_distribution(temperature: float, filters: str, draft: str) -> None:
    params = replace(FILTERS[filters], temperature=temperature)
    counts = _sample_streams(params, DRAFTS[draft], _right())
    for length in (1, LENGTH):
        assert _p_value(params, counts, length) > 1e-3


@pytest.mark.parametrize("filters", FILTERS)
def test_seeded_output_has_the_targets_distribution_over_seeds(filters: str) -> None:
    params = FILTERS[filters]
    counts: Counter[tuple[int, ...]] = Counter()
    streams: list[tuple[int, ...]] = [()] * NUM_STREAMS
    rules = [_rules(replace(params, seed=seed)) for seed in range(NUM_STREAMS)]
    for _ in range(LENGTH):
        blocks = [Block(each, PROMPT + tokens) for each, tokens in zip(rules, streams, strict=True)]
        verdicts = _right()(_logits(blocks), blocks)
        streams = [(*t, *verdict.token_ids) for t, verdict in zip(streams, verdicts, strict=True)]
    counts.update(streams)
    for length in (1, LENGTH):
        assert _p_value(params, counts, length) > 1e-3


def _resampling_from_p() -> Decide:
    """Wrong: a rejected position is sampled from p instead of the residual."""
    rng = random.Random(7)

    def decide(logits: Tensor, blocks: list[Block]) -> list[Verdict]:
        verdicts = []
        for block in blocks:
            committed: list[int] = []
            for index, proposal in enumerate(block.proposals):
                probs = _exact(block.sampling, _context((*block.token_ids[1:], *committed)))
                if (
                    rng.random() * float(draft_distributions(batch_of([block]))[1][index, proposal])
                    >= probs[proposal]
                ):
                    break
                committed.append(proposal)
            probs = _exact(block.sampling, _context((*block.token_ids[1:], *committed)))
            token = rng.choices(range(VOCAB_SIZE), probs)[0]
            verdicts.append(Verdict((*committed, token), len(committed)))
        return verdicts

    return decide


def _accepting_everything() -> Decide:
    """Wrong: the proposals are committed unseen."""
    right = _right()

    def decide(logits: Tensor, blocks: list[Block]) -> list[Verdict]:
        after = [replace(b, token_ids=(*b.token_ids, *b.proposals), proposals=()) for b in blocks]
        bonus = right(_logits(after), after)
        return [
            Verdict((*block.proposals, *verdict.token_ids), len(block.proposals))
            for block, verdict in zip(blocks, bonus, strict=True)
        ]

    return decide


def _cutting_unlikely_proposals() -> Decide:
    """Wrong: the verify length depends on what was proposed."""
    right = _right()

    def decide(logits: Tensor, blocks: list[Block]) -> list[Verdict]:
        cut = []
        for block in blocks:
            pairs = zip(draft_distributions(batch_of([block]))[1][:-1], block.proposals, strict=True)
            likely = [bool(row[proposal] >= 0.4) for row, proposal in pairs]
            cut.append(replace(block, proposals=block.proposals[: [*likely, False].index(False)]))
        return right(_logits(cut), cut)

    return decide


@pytest.mark.parametrize("wrong", [_resampling_from_p, _accepting_everything, _cutting_unlikely_proposals])
def test_a_wrong_rule_is_rejected(wrong: Callable[[], Decide]) -> None:
    params = SamplingParams(temperature=0.7)
    assert _p_value(params, _sample_streams(params, DRAFTS["sparse"], wrong())) < 1e-9


def test_a_drafter_that_ignores_its_temperature_is_noticed() -> None:
    params = SamplingParams(temperature=0.7)
    liar = Draft(reported=lambda c: _softmax(TARGET[c] / 0.7), sampled=lambda c: _softmax(TARGET[c]))
    assert _p_value(params, _sample_streams(params, liar, _right())) < 1e-9
