"""Sampling under a grammar has the target's masked distribution, whatever the drafter's is."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dspine_cluster.engine.blocks import Distributions
from dspine_cluster.engine.grammar_state import GrammarState
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams, StopConditions
from tests.engine.block_cases import Block, batch_of, verify_each
from tests.engine.grammar_cases import compile_for, regex

TOKENS = [b"a", b"b", b"ab", b"c", b"ca", b""]
EOS = 5
GRAMMAR = compile_for(TOKENS, EOS, regex("(ab?|ca?){1,2}b(a|c)"))
MAX_TOKENS = 4
NUM_STREAMS = 2000
PROMPT = (0,)
"""Which the target does not look at."""


def _table(seed: int) -> Tensor:
    """Logits after each token, -1 being "before the start": [7, 6]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(TOKENS) + 1, len(TOKENS), generator=generator) * 1.5


TARGET, DRAFT = _table(0), _table(1)


def _rules() -> LogitRules:
    return LogitRules(
        SamplingParams(top_k=3),
        StopConditions(max_tokens=MAX_TOKENS, min_tokens=2),
        num_prompt_tokens=len(PROMPT),
        eos_token_ids=[EOS],
        mask_token_id=None,
        vocab_size=len(TOKENS),
        device=torch.device("cpu"),
        grammar=GrammarState(GRAMMAR, len(PROMPT)),
    )


def _last(tokens: tuple[int, ...]) -> int:
    return tokens[-1] if tokens else -1


def _exact(tokens: tuple[int, ...] = (), prob: float = 1.0) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every output with its probability: masks first, then top-k, then renormalised."""
    if EOS in tokens or len(tokens) == MAX_TOKENS:
        yield tokens, prob
        return
    state = GrammarState(GRAMMAR, 0)
    legal = set(torch.nonzero(state.legal_tokens(tokens, [], torch.device("cpu"))[0]).flatten().tolist())
    if len(tokens) < 2 and legal != {EOS}:
        legal -= {EOS}
    weights = {token: math.exp(TARGET[_last(tokens), token]) for token in legal}
    top = sorted(weights, key=lambda token: -weights[token])[:3]
    for token in top:
        share = weights[token] / sum(weights[t] for t in top)
        yield from _exact((*tokens, token), prob * share)


def _block(rules: LogitRules, tokens: tuple[int, ...], rng: random.Random, *, forgets_cuts: bool) -> Block:
    """Up to 3 proposals of a drafter that knows nothing of the grammar, as a pass takes them."""
    proposals: list[int] = []
    distributions: list[list[float]] = []
    for _ in range(min(rng.randrange(4), MAX_TOKENS - len(tokens) - 1)):
        distributions.append(DRAFT[_last((*tokens, *proposals))].softmax(-1).tolist())
        proposals.append(rng.choices(range(len(TOKENS)), distributions[-1])[0])
    if not proposals:
        return Block(rules, PROMPT + tokens)
    candidates = torch.arange(len(TOKENS)).repeat(len(proposals), 1)
    draft = Distributions(candidates, torch.tensor(distributions))
    batch = batch_of([Block(rules, PROMPT + tokens, proposals, draft)]).legal()
    return Block(
        rules, PROMPT + tokens, batch.proposals[0], batch.drafts[0], bool(batch.cut) and not forgets_cuts
    )


def _p_value(*, forgets_cuts: bool = False) -> float:
    """Chi-square test of whole outputs, rare ones pooled."""
    rng, generator = random.Random(2), torch.Generator().manual_seed(4)
    done: Counter[tuple[int, ...]] = Counter()
    streams: list[tuple[tuple[int, ...], LogitRules]] = [((), _rules()) for _ in range(NUM_STREAMS)]
    while streams:
        blocks = [_block(rules, tokens, rng, forgets_cuts=forgets_cuts) for tokens, rules in streams]
        lasts = [
            _last((*block.token_ids[1:], *block.proposals[:row]))
            for block in blocks
            for row in range(block.num_rows)
        ]
        logits = TARGET[torch.tensor(lasts)]
        verdicts = verify_each(logits, blocks, generator)
        grown = [
            ((*tokens, *verdict.token_ids), rules)
            for (tokens, rules), verdict in zip(streams, verdicts, strict=True)
        ]
        cut = [(t[: t.index(EOS) + 1] if EOS in t else t, rules) for t, rules in grown]
        done.update(t for t, _ in cut if EOS in t or len(t) == MAX_TOKENS)
        streams = [(t, rules) for t, rules in cut if EOS not in t and len(t) < MAX_TOKENS]
    exact = dict(_exact())
    assert done.keys() <= exact.keys()
    large = {tokens for tokens, prob in exact.items() if prob * NUM_STREAMS >= 5.0}
    cells = [(exact[tokens] * NUM_STREAMS, done[tokens]) for tokens in large]
    rest = NUM_STREAMS - sum(expected for expected, _ in cells)
    if rest > 1e-6:
        cells.append((rest, NUM_STREAMS - sum(count for _, count in cells)))
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def test_sampled_output_has_the_masked_distribution_of_the_target() -> None:
    assert _p_value() > 1e-3


def test_the_test_sees_rejections_that_are_forgotten() -> None:
    assert _p_value(forgets_cuts=True) < 1e-6


@pytest.mark.parametrize("seed", [None, 3])
def test_min_tokens_gives_way_where_the_grammar_leaves_only_the_end(seed: int | None) -> None:
    fixed = compile_for(TOKENS, EOS, {"type": "const_string", "value": "c"})
    rules = LogitRules(
        SamplingParams(seed=seed),
        StopConditions(max_tokens=9, min_tokens=5, ignore_eos=True),
        num_prompt_tokens=len(PROMPT),
        eos_token_ids=[EOS],
        mask_token_id=None,
        vocab_size=len(TOKENS),
        device=torch.device("cpu"),
        grammar=GrammarState(fixed, len(PROMPT)),
    )
    logits = torch.zeros(2, len(TOKENS))
    [verdict] = verify_each(logits, [Block(rules, PROMPT, [3])], torch.Generator())
    assert verdict.token_ids == (3, EOS)
