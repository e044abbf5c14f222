from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams, StopConditions

VOCAB_SIZE = 12
EOS = 11
MASK = 10
tokens_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=10)
sampling_strategy = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), ((2, 5.0), (7, -100.0)), ((MASK, 100.0), (EOS, 3.0))]),
    allowed_token_ids=st.sampled_from([None, None, (0, 1, 2, EOS), (3,), (EOS, MASK)]),
    bad_words=st.sampled_from([(), (), ((3,),), ((0, 1), (1,)), ((1, 2, 3), (2, EOS)), ((EOS,), (2, 2))]),
)


def _rules(
    sampling: SamplingParams, *, num_prompt_tokens: int = 0, stop: StopConditions | None = None
) -> LogitRules:
    return LogitRules(
        sampling,
        stop or StopConditions(max_tokens=100),
        num_prompt_tokens=num_prompt_tokens,
        eos_token_ids=[EOS],
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
    )


def _logits(num_rows: int) -> Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(num_rows)) * 3


def _row_by_definition(
    row: list[float], sampling: SamplingParams, prompt: list[int], output: list[int], min_tokens: int
) -> list[float]:
    """What plain decoding does to one row, token by token."""
    counts = Counter(output)
    chosen = sampling.allowed_token_ids
    allowed = set(range(VOCAB_SIZE)) if chosen is None else set(chosen)
    ends_alone = allowed <= {EOS, MASK}
    changed = []
    for token, raw in enumerate(row):
        logit = raw + dict(sampling.logit_bias).get(token, 0.0)
        if token in counts or token in prompt:
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        logit -= sampling.frequency_penalty * counts[token]
        logit -= sampling.presence_penalty * (token in counts)
        is_early = token == EOS and len(output) < min_tokens and not ends_alone
        is_masked = token == MASK or token not in allowed or is_early
        changed.append(-torch.inf if is_masked else logit)
    banned = {word[-1] for word in sampling.bad_words if _ends_with(output, word[:-1])}
    without = [-torch.inf if token in banned else logit for token, logit in enumerate(changed)]
    return without if max(without) > -torch.inf else changed


def _ends_with(output: list[int], tokens: tuple[int, ...]) -> bool:
    return tuple(output[len(output) - len(tokens) :]) == tokens if len(tokens) <= len(output) else False


@given(sampling_strategy, tokens_lists, tokens_lists, tokens_lists, st.integers(0, 14))
def test_each_position_of_a_block_equals_the_sequential_definition(
    sampling: SamplingParams, prompt: list[int], output: list[int], proposals: list[int], min_tokens: int
) -> None:
    stop = StopConditions(max_tokens=100, min_tokens=min_tokens)
    logits = _logits(len(proposals) + 1)
    expected = [
        _row_by_definition(row, sampling, prompt, output + proposals[:index], min_tokens)
        for index, row in enumerate(logits.tolist())
    ]
    _rules(sampling, num_prompt_tokens=len(prompt), stop=stop).apply(logits, prompt + output, proposals)
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@given(sampling_strategy, tokens_lists, st.lists(tokens_lists, min_size=1, max_size=4))
def test_rules_follow_the_committed_tokens_over_rounds(
    sampling: SamplingParams, prompt: list[int], rounds: list[list[int]]
) -> None:
    following = _rules(sampling, num_prompt_tokens=len(prompt))
    token_ids = list(prompt)
    for committed in rounds:
        following.apply(_logits(3), token_ids, [1, 2])
        token_ids += committed
    resumed = _rules(sampling, num_prompt_tokens=len(prompt))
    logits, expected = _logits(2), _logits(2)
    following.apply(logits, token_ids, [5])
    resumed.apply(expected, token_ids, [5])
    assert torch.equal(logits, expected)


def test_a_rejected_proposal_leaves_no_trace_in_later_rounds() -> None:
    sampling = SamplingParams(presence_penalty=1.0)
    rules = _rules(sampling)
    rules.apply(_logits(2), [3], [4])
    logits = torch.zeros(1, VOCAB_SIZE)
    rules.apply(logits, [3, 5], [])
    assert logits[0, :6].tolist() == [0.0, 0.0, 0.0, -1.0, 0.0, -1.0]


def test_stop_tokens_are_masked_below_min_tokens_and_eos_only_unless_ignored() -> None:
    stop = StopConditions(max_tokens=9, min_tokens=2, stop_token_ids=(4,), ignore_eos=True)
    logits = torch.zeros(4, VOCAB_SIZE)
    _rules(SamplingParams(), stop=stop).apply(logits, [], [0, 0, 0])
    assert logits[:, 4].isinf().tolist() == [True, True, False, False]
    assert not bool(logits[:, EOS].isinf().any())


def test_the_mask_token_is_never_possible() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    _rules(SamplingParams(temperature=0.0)).apply(logits, [1], [MASK, 1])
    assert bool((logits[:, MASK] == -torch.inf).all())
    assert int(logits.isinf().sum()) == 3
