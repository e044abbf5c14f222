from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.core.end_of_request import cut_at_end
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.engine.sampling import apply_rules, verify
from dspine_cluster.types import FinishReason, SamplingParams, StopConditions
from tests.engine.block_cases import Block, Verdict, batch_of, verdicts_of, verify_each

VOCAB_SIZE = 24
EOS = 23
MASK = 22
LENGTH = 12
WEIGHTS = torch.randn(3, VOCAB_SIZE + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))

Drafter = Callable[[list[int], int], list[int]]


def _logits_after(tokens: Sequence[int]) -> Tensor:
    """A language model that looks at three tokens."""
    recent = (VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, *tokens)[-3:]
    return 2.0 * sum((WEIGHTS[i, token] for i, token in enumerate(recent)), torch.zeros(VOCAB_SIZE))


def _logits(blocks: Sequence[Block]) -> Tensor:
    return torch.stack(
        [_logits_after((*b.token_ids, *b.proposals[:row])) for b in blocks for row in range(b.num_rows)]
    )


def _verify(blocks: Sequence[Block], *, max_rows: int = 256, seed: int = 0) -> list[Verdict]:
    return verify_each(_logits(blocks), blocks, torch.Generator().manual_seed(seed), max_rows=max_rows)


def _rules(
    sampling: SamplingParams,
    *,
    num_prompt_tokens: int,
    stop: StopConditions | None = None,
    mask_token_id: int | None = MASK,
) -> LogitRules:
    return LogitRules(
        sampling,
        stop or StopConditions(max_tokens=LENGTH),
        num_prompt_tokens=num_prompt_tokens,
        eos_token_ids=[EOS],
        mask_token_id=mask_token_id,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
    )


def _generate(
    sampling: SamplingParams, drafter: Drafter, stop: StopConditions | None = None
) -> tuple[list[int], FinishReason | None]:
    """Rounds of draft, verify and commit until the request ends."""
    prompt = [3, 1, 4]
    conditions = stop or StopConditions(max_tokens=LENGTH, ignore_eos=True)
    rules = _rules(sampling, num_prompt_tokens=len(prompt), stop=conditions)
    tokens, reason = list(prompt), None
    while reason is None:
        proposals = drafter(tokens, random.Random(len(tokens)).randrange(8))
        verdict = _verify([Block(rules, tokens, proposals)])[0]
        assert verdict.token_ids[: verdict.num_accepted] == tuple(proposals[: verdict.num_accepted])
        num_kept, reason = cut_at_end(
            verdict.token_ids,
            num_output_before=len(tokens) - len(prompt),
            conditions=conditions,
            eos_token_ids=[EOS],
        )
        tokens += verdict.token_ids[:num_kept]
    return tokens[len(prompt) :], reason


def _silent(tokens: list[int], count: int) -> list[int]:
    return []


def _random(tokens: list[int], count: int) -> list[int]:
    return random.Random(sum(tokens)).choices(range(VOCAB_SIZE), k=count)


def _oracle_for(sampling: SamplingParams, stop: StopConditions | None = None) -> Drafter:
    """Knows the output and goes on after its end; now and then its last proposal is wrong."""
    truth = [3, 1, 4, *_generate(sampling, _silent, stop)[0], 0, 1, 2, 3, 4, 5, 6, 7]

    def draft(tokens: list[int], count: int) -> list[int]:
        proposals = truth[len(tokens) : len(tokens) + count]
        if len(tokens) % 3 == 0 and proposals:
            proposals[-1] = (proposals[-1] + 1) % VOCAB_SIZE
        return proposals

    return draft


determined_sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    logit_bias=st.sampled_from([(), ((5, 2.0),)]),
)


@given(determined_sampling)
@settings(max_examples=25)
def test_greedy_and_seeded_output_is_the_same_whatever_was_proposed(sampling: SamplingParams) -> None:
    plain = _generate(sampling, _silent)
    assert _generate(sampling, _random) == plain
    assert _generate(sampling, _oracle_for(sampling)) == plain


@given(st.integers(0, 300), st.integers(0, 6))
@settings(max_examples=25)
def test_the_end_inside_a_block_is_the_end_of_plain_decoding(seed: int, min_tokens: int) -> None:
    sampling = SamplingParams(seed=seed, logit_bias=((EOS, 1.5),))
    stop = StopConditions(max_tokens=LENGTH, min_tokens=min_tokens, stop_token_ids=(2,))
    tokens, reason = _generate(sampling, _silent, stop)
    assert _generate(sampling, _oracle_for(sampling, stop), stop) == (tokens, reason)
    assert not {EOS, 2} & set(tokens[:-1])
    assert (reason is FinishReason.STOP) == (tokens[-1] in (EOS, 2))
    assert len(tokens) > min_tokens


def test_an_oracle_is_accepted() -> None:
    sampling = SamplingParams(seed=5)
    truth = _generate(sampling, _silent)[0]
    rules = _rules(sampling, num_prompt_tokens=3)
    verdict = _verify([Block(rules, [3, 1, 4], truth[:6])])[0]
    assert verdict == Verdict(tuple(truth[:7]), 6)


def _mixed_blocks() -> list[Block]:
    blocks = []
    rng = random.Random(0)
    for index in range(30):
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0]),
            seed=rng.choice([None, index]),
            top_k=rng.choice([0, 3]),
            top_p=rng.choice([0.7, 1.0]),
            frequency_penalty=rng.choice([0.0, 0.5]),
        )
        tokens = rng.choices(range(VOCAB_SIZE), k=rng.randint(2, 9))
        proposals = rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 5))
        blocks.append(Block(_rules(sampling, num_prompt_tokens=2), tokens, proposals))
    return blocks


def _is_unseeded(block: Block) -> bool:
    return not block.sampling.is_greedy and block.sampling.seed is None


@pytest.mark.parametrize("unseeded", [False, True])
def test_a_mixed_batch_equals_its_kinds_apart(unseeded: bool) -> None:
    blocks = _mixed_blocks()
    together = [v for v, b in zip(_verify(blocks), blocks, strict=True) if _is_unseeded(b) == unseeded]
    assert together == _verify([block for block in blocks if _is_unseeded(block) == unseeded])


def test_a_determined_request_does_not_depend_on_its_batch() -> None:
    blocks = _mixed_blocks()
    for block, verdict in zip(blocks, _verify(blocks), strict=True):
        if not _is_unseeded(block):
            assert _verify([block]) == [verdict]


@pytest.mark.parametrize("max_rows", [1, 7, 20])
def test_chunks_bound_the_rows_and_change_nothing_that_is_determined(max_rows: int) -> None:
    blocks = [block for block in _mixed_blocks() if not _is_unseeded(block)]
    logits = _logits(blocks)
    asked: list[tuple[int, int]] = []

    def logits_of(start: int, end: int) -> Tensor:
        asked.append((start, end))
        return logits[start:end]

    chunked = verify(logits_of, batch_of(blocks), torch.Generator(), max_rows=max_rows)
    assert verdicts_of(chunked) == _verify(blocks)
    assert [start for start, _ in asked] == [0, *(end for _, end in asked[:-1])]
    assert asked[-1][1] == len(logits)
    assert all(end - start <= max(max_rows, 6) for start, end in asked)


def test_raw_logits_stay_as_they_were() -> None:
    blocks = _mixed_blocks()
    logits = _logits(blocks)
    before = logits.clone()
    processed = apply_rules(logits, batch_of(blocks))
    verify_each(logits, blocks, torch.Generator())
    assert torch.equal(logits, before)
    assert bool((processed[:, MASK] == -torch.inf).all())


def test_each_request_masks_its_own_token() -> None:
    masks = [MASK, None, 3]
    rules = [_rules(SamplingParams(), num_prompt_tokens=1, mask_token_id=mask) for mask in masks]
    processed = apply_rules(torch.zeros(3, VOCAB_SIZE), batch_of([Block(each, [1]) for each in rules]))
    masked = [row.isinf().nonzero()[:, 0].tolist() for row in processed]
    assert masked == [[MASK], [], [3]]


def test_logits_of_trainable_weights_are_accepted() -> None:
    blocks = _mixed_blocks()
    logits = _logits(blocks).requires_grad_()
    verdicts = verify_each(1.0 * logits, blocks, torch.Generator().manual_seed(0))
    assert verdicts == _verify(blocks)


def test_low_precision_logits_are_processed_in_float32() -> None:
    blocks = _mixed_blocks()
    assert apply_rules(_logits(blocks).bfloat16(), batch_of(blocks)).dtype == torch.float32


def test_nothing_to_verify_yields_nothing() -> None:
    assert verify_each(torch.empty(0), [], torch.Generator()) == []
