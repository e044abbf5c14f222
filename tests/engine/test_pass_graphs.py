"""Padded passes give what unpadded ones give, and leave pools as they do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel
from tests.verifier.harness import dense_config, hybrid_config, random_engine, random_prompts, random_target

CONFIGS = {"hybrid": hybrid_config, "dense": dense_config}
NUM_REQUESTS = 5
PAGES = [[i, 10 + i, 20 + i, 30 + i, 40 + i, 50 + i, 60 + i] for i in range(NUM_REQUESTS)]


@pytest.fixture(scope="module", params=CONFIGS)
def target(request: pytest.FixtureRequest) -> TargetModel:
    config: TargetConfig = CONFIGS[request.param]()
    return random_target(config, seed=3)


class Run:
    """An engine with prefilled requests, whose unused memory holds NaN."""

    def __init__(self, target: TargetModel, buckets: GraphBuckets | None) -> None:
        self.engine = random_engine(
            target, pool_tokens=80 * 16, num_slots=NUM_REQUESTS, graph_buckets=buckets
        )
        pools = (self.engine.kv_pool.keys, self.engine.kv_pool.values, self.engine.feature_pool.storage)
        for tensor in pools:
            tensor.fill_(torch.nan)
        self.slots = [self.engine.state_pool.allocate() for _ in range(NUM_REQUESTS)]
        self.lengths = []
        for prompt, pages, slot in zip(
            random_prompts(NUM_REQUESTS, seed=8, max_length=40), PAGES, self.slots, strict=True
        ):
            self.engine.forward(PackedRows.of(chunks=[Segment(prompt, 0, pages, slot)]))
            self.lengths.append(len(prompt))

    def round(self, widths: list[int], accepted: list[int]) -> Tensor:
        """A block of each width (0: none of that request), some of whose proposals are accepted."""
        members = [i for i, width in enumerate(widths) if width]
        blocks = [
            Segment(
                [(7 * i + 3 * j + self.lengths[i]) % 250 for j in range(widths[i])],
                self.lengths[i],
                PAGES[i],
                self.slots[i],
            )
            for i in members
        ]
        hidden = self.engine.forward(PackedRows.of(blocks))
        for i in members:
            num_accepted = min(accepted[i], widths[i] - 1)
            self.engine.state_pool.set_pending(self.slots[i], num_accepted)
            self.lengths[i] += num_accepted + 1
        return hidden


def assert_same(padded: Tensor, plain: Tensor) -> None:
    torch.testing.assert_close(padded, plain, atol=1e-5, rtol=1e-5, equal_nan=True)


WIDTHS = st.lists(st.integers(0, 16), min_size=NUM_REQUESTS, max_size=NUM_REQUESTS).filter(any)
ROUND = st.tuples(WIDTHS, st.lists(st.integers(0, 15), min_size=NUM_REQUESTS, max_size=NUM_REQUESTS))


@given(rounds=st.lists(ROUND, min_size=1, max_size=4))
@settings(max_examples=10)
def test_padded_rounds_equal_unpadded_ones(
    target: TargetModel, rounds: list[tuple[list[int], list[int]]]
) -> None:
    padded, plain = Run(target, GraphBuckets(NUM_REQUESTS, 16)), Run(target, None)
    for widths, accepted in rounds:
        assert_same(padded.round(widths, accepted), plain.round(widths, accepted))
    assert_same(padded.engine.kv_pool.keys, plain.engine.kv_pool.keys)
    assert_same(padded.engine.kv_pool.values, plain.engine.kv_pool.values)
    assert_same(padded.engine.feature_pool.rows, plain.engine.feature_pool.rows)
    for own, other in zip(
        padded.engine.state_pool.live_tensors, plain.engine.state_pool.live_tensors, strict=True
    ):
        assert_same(own, other)


def test_a_pass_after_a_larger_one_of_its_bucket_sees_nothing_of_it(target: TargetModel) -> None:
    buckets = GraphBuckets(NUM_REQUESTS, 16)
    used, fresh = Run(target, buckets), Run(target, buckets)
    used.round([16, 16, 0, 0, 0], [0] * NUM_REQUESTS)
    for run in (used, fresh):
        run.round([0, 0, 16, 16, 0], [3] * NUM_REQUESTS)
    hidden = [run.round([0, 0, 0, 13, 12], [2] * NUM_REQUESTS) for run in (used, fresh)]
    assert torch.equal(hidden[0], hidden[1])


def test_warming_up_leaves_pools_as_they_are(target: TargetModel) -> None:
    run = Run(target, GraphBuckets(2, 16))
    pool = run.engine.state_pool
    before = [tensor.clone() for tensor in (*pool.live_tensors, run.engine.kv_pool.keys)]
    assert run.engine.graphs is not None
    with torch.inference_mode():
        run.engine.graphs.warm_up()
    for tensor, old in zip((*pool.live_tensors, run.engine.kv_pool.keys), before, strict=True):
        assert torch.equal(tensor.nan_to_num(), old.nan_to_num())


def test_what_has_no_bucket_runs_unpadded(target: TargetModel) -> None:
    narrow, plain = Run(target, GraphBuckets(1, 4)), Run(target, None)
    for widths in ([9, 0, 0, 0, 0], [1, 1, 1, 0, 0]):
        assert torch.equal(narrow.round(widths, [0] * 5), plain.round(widths, [0] * 5))


def test_numbers_that_are_not_finite_in_padding_stop_no_pass_but_those_of_requests_do() -> None:
    target = random_target(dense_config(), seed=2)
    run = Run(target, GraphBuckets(NUM_REQUESTS, 16))
    target.model.embed_tokens.weight[0] = torch.nan  # what padding embeds
    hidden = run.round([1, 0, 0, 0, 0], [0] * NUM_REQUESTS)
    assert hidden.isfinite().all()
    with pytest.raises(FloatingPointError):
        run.engine.forward(PackedRows.of([Segment([0], run.lengths[1], PAGES[1], run.slots[1])]))
