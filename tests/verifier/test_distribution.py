"""Unseeded sampling through the whole loop has exactly the target's distribution, whatever the drafter's is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dspine_cluster.bench.overhead_sides import DraftsForAll
from dspine_cluster.core.verify_length import VerifyLengthPolicy
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.confidence import bins_of
from dspine_cluster.transport.messages import Proposals
from dspine_cluster.types import SamplingParams
from tests.drafts import DraftItem
from tests.verifier.harness import (
    MASK,
    LoopHarness,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_target,
    time_passes,
)

Float64Array = npt.NDArray[np.float64]
PROMPT = (17, 201, 33, 8)
NUM_TOKENS = 3
NUM_SAMPLES = 2500
CASES = {
    "temperature 1, top-k": SamplingParams(temperature=1.0, top_k=4),
    "temperature 0.7, top-k, top-p": SamplingParams(temperature=0.7, top_k=6, top_p=0.9),
}


@pytest.fixture(scope="module")
def target() -> TargetModel:
    target = random_target(hybrid_config(), seed=12)
    target.lm_head_weight.mul_(2.5)  # sharper, so that distributions are far from uniform
    return target


def next_token_probs(
    target: TargetModel, tokens: Sequence[int], params: SamplingParams
) -> list[tuple[int, float]]:
    """The definition, for top-k then top-p."""
    ids = torch.tensor(tokens)
    with torch.no_grad():
        output = target(ids, torch.arange(len(ids)), SequenceCache(1, len(ids)))
        logits: Tensor = target.logits(output.hidden[-1:])[0].double() / params.temperature
    logits[MASK] = -torch.inf
    top = logits.topk(params.top_k)
    probs = top.values.softmax(-1)
    num_kept = int((probs.cumsum(-1) - probs < params.top_p).sum())
    probs = probs[:num_kept] / probs[:num_kept].sum()
    return list(zip(top.indices.tolist(), probs.tolist(), strict=False))


def exact_distribution(
    target: TargetModel, params: SamplingParams, prefix: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    if len(prefix) == NUM_TOKENS:
        yield prefix, 1.0
        return
    for token, prob in next_token_probs(target, (*PROMPT, *prefix), params):
        for tokens, rest in exact_distribution(target, params, (*prefix, token)):
            yield tokens, prob * rest


Exact = dict[tuple[int, ...], float]
"""Probability by output."""


class NoisyDrafter(ScriptedChannel):
    """Samples from a distribution of its own over tokens that the target finds likely, and some that it does not."""

    def __init__(self, exact: Exact) -> None:
        super().__init__(lambda item: None)
        self._random = np.random.default_rng(1)
        self._tells_drawn = False
        likely = [t for t, _ in Counter(t for tokens in exact for t in tokens).most_common(8)]
        others = [t for t in range(250) if t not in likely]
        self._candidates = np.array([*likely, *others][:16], dtype=np.int32)

    def _answer(self, item: DraftItem) -> None:
        q = self._distributions(item).astype(np.float32)
        each = (row.astype(np.float64) / row.sum(dtype=np.float64) for row in q)
        picks = np.array([self._random.choice(16, p=p) for p in each])
        tokens = self._candidates[picks][None]
        confidence = q[range(15), picks][None] if self._tells_drawn else q.max(-1)[None]
        order = (np.arange(16) != picks[:, None]).argsort(-1)  # the drawn one first
        candidates, q = self._candidates[order][None], np.take_along_axis(q, order, -1)
        self._inbox.append(
            Proposals(
                np.array([[item.uid], [item.round], [1]]),
                tokens,
                candidates,
                q[None],
                bins_of(confidence),
                0.001,
            )
        )

    def _distributions(self, item: DraftItem) -> Float64Array:
        """[15, 16]"""
        return self._random.dirichlet(np.full(16, 0.5), size=15)


class GoodDrafter(NoisyDrafter):
    """About as good as one can be that knows how often each token comes at each place of the output."""

    def __init__(self, exact: Exact, *, tells_drawn: bool = False) -> None:
        """With `tells_drawn` its confidence is that of the tokens it drew, which is forbidden."""
        super().__init__(exact)
        self._tells_drawn = tells_drawn
        masses: Counter[int] = Counter()
        for tokens, p in exact.items():
            masses.update(dict.fromkeys(tokens, p))
        self._candidates = np.array([token for token, _ in masses.most_common(16)], dtype=np.int32)
        self._shares = np.full((NUM_TOKENS + 15, 16), 1 / 16)
        for place in range(NUM_TOKENS):
            for index, token in enumerate(self._candidates):
                self._shares[place, index] = sum(p for t, p in exact.items() if t[place] == token)

    def _distributions(self, item: DraftItem) -> Float64Array:
        q = self._shares[item.output_index :][:15] * self._random.gamma(4.0, size=(15, 16))
        normalised: Float64Array = q / q.sum(-1, keepdims=True)
        return normalised


def p_value(counts: Counter[tuple[int, ...]], exact: Exact) -> float:
    """Pearson's chi-square, outcomes that are expected fewer than five times taken together."""
    total = sum(counts.values())
    common = {outcome: p for outcome, p in exact.items() if p * total >= 5}
    observed = [counts[outcome] for outcome in common]
    expected = [p * total for p in common.values()]
    if (rest := total - sum(expected)) > 1:
        observed.append(total - sum(observed))
        expected.append(rest)
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    half = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def sample(
    target: TargetModel,
    params: SamplingParams,
    drafter: NoisyDrafter,
    policy: VerifyLengthPolicy | None = None,
    num_samples: int = NUM_SAMPLES,
) -> tuple[Counter[tuple[int, ...]], LoopHarness]:
    """With a policy that learns, by passes whose time grows with their tokens."""
    harness = LoopHarness(
        target, channel=drafter, policy=policy, seed=3, max_running_requests=32, max_batch_tokens=1024
    )
    request = make_request(PROMPT, max_tokens=NUM_TOKENS, sampling=params, ignore_eos=True)
    with pytest.MonkeyPatch.context() as patch:
        time_passes(patch, harness, lambda num_tokens: 0.1 + 0.007 * num_tokens)
        results = harness.generate([request] * num_samples)
    return Counter(tuple(r.token_ids) for r in results), harness


@pytest.mark.parametrize("case", CASES)
def test_sampled_text_has_the_target_s_distribution(target: TargetModel, case: str) -> None:
    params = CASES[case]
    exact = dict(exact_distribution(target, params))
    assert sum(exact.values()) == pytest.approx(1.0)
    counts, harness = sample(target, params, NoisyDrafter(exact))
    assert not counts.keys() - exact.keys(), "a token outside the filtered support"
    metrics = harness.loop.metrics
    assert 0.05 < metrics.accepted_tokens_total / metrics.verified_tokens_total < 0.9
    assert p_value(counts, exact) > 0.001


@pytest.mark.parametrize("tells_drawn", [False, True])
def test_dynamic_decisions_leave_the_distribution_unless_they_look_at_what_was_drawn(
    target: TargetModel, tells_drawn: bool
) -> None:
    params = CASES["temperature 1, top-k"]
    exact = dict(exact_distribution(target, params))
    drafter = GoodDrafter(exact, tells_drawn=tells_drawn)
    counts, harness = sample(target, params, drafter, DraftsForAll(Random(1)), 2 * NUM_SAMPLES)
    decided = harness.loop.metrics.verify_length_total
    assert min(decided[0], decided[1]) > 100, "hardly anything was decided"
    p = p_value(counts, exact)
    assert p < 1e-5 if tells_drawn else p > 0.001


def test_the_check_sees_another_temperature(target: TargetModel) -> None:
    params = CASES["temperature 1, top-k"]
    other = SamplingParams(temperature=0.7, top_k=4)
    exact = dict(exact_distribution(target, params))
    counts, _ = sample(target, other, NoisyDrafter(exact))
    assert p_value(counts, exact) < 1e-9
