"""A pass gives the same numbers however its tokens are cut into chunks, blocks and batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.page_table import PageTable
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.target import TargetModel
from tests.verifier.harness import dense_config, hybrid_config, random_engine, random_prompts, random_target

NUM_PAGES = 32
CONFIGS = {"hybrid": hybrid_config, "dense": dense_config}


@pytest.fixture(scope="module", params=CONFIGS)
def target(request: pytest.FixtureRequest) -> TargetModel:
    config: TargetConfig = CONFIGS[request.param]()
    return random_target(config, seed=2)


def fresh_engine(target: TargetModel) -> Engine:
    engine = random_engine(target, pool_tokens=NUM_PAGES * 16, num_slots=4)
    for tensor in (engine.kv_pool.keys, engine.kv_pool.values, engine.feature_pool.rows):
        tensor.fill_(torch.nan)
    return engine


def whole(target: TargetModel, tokens: Sequence[int]) -> Tensor:
    """Final hidden states of one sequence, in one piece and without pools."""
    ids = torch.tensor(tokens)
    with torch.inference_mode():
        hidden: Tensor = target(ids, torch.arange(len(ids)), SequenceCache(1, len(ids))).hidden
    return hidden


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=0)


PAGES = [7, 3, 19, 0, 11, 28, 5, 14]


@given(cuts=st.lists(st.integers(1, 119), max_size=5, unique=True))
@settings(max_examples=15)
def test_chunked_prefill_equals_one_piece(target: TargetModel, cuts: list[int]) -> None:
    tokens = [t % 250 for t in range(3, 363, 3)]
    engine = fresh_engine(target)
    slot = engine.state_pool.allocate()
    bounds = [0, *sorted(cuts), 120]
    parts = [
        engine.forward(PackedRows.of(chunks=[Segment(tokens[start:end], start, PAGES, slot)]))
        for start, end in pairwise(bounds)
    ]
    assert_close(torch.cat(parts), whole(target, tokens))


@given(rounds=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=8))
@settings(max_examples=25)
def test_blocks_of_any_length_and_acceptance_equal_one_piece(
    target: TargetModel, rounds: list[tuple[int, int]]
) -> None:
    """Wrong proposals leave no trace, a block without proposals included."""
    truth = [(7 * t + 1) % 250 for t in range(200)]
    engine = fresh_engine(target)
    slot = engine.state_pool.allocate()
    engine.forward(PackedRows.of(chunks=[Segment(truth[:20], 0, PAGES[:2], slot)]))
    pages = [*PAGES, 20, 21, 22, 23, 24]
    expected = whole(target, truth)
    n = 20
    for length, wanted in rounds:
        accepted = min(length, wanted)
        block = truth[n : n + 1 + accepted] + [99] * (length - accepted)
        hidden = engine.forward(PackedRows.of([Segment(block, n, pages, slot)]))
        assert_close(hidden[: accepted + 1], expected[n : n + accepted + 1])
        engine.state_pool.set_pending(slot, accepted)
        n += accepted + 1


def test_a_mixed_batch_equals_each_request_alone(target: TargetModel) -> None:
    prompts = random_prompts(3, seed=5, max_length=60)
    engine = fresh_engine(target)
    pages = [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]
    slots = [engine.state_pool.allocate() for _ in prompts]
    for prompt, table, slot in zip(prompts[:2], pages, slots, strict=False):
        engine.forward(PackedRows.of(chunks=[Segment(prompt, 0, table, slot)]))
    blocks = [
        Segment([1, 2, 3, 4], len(prompts[0]), pages[0], slots[0]),
        Segment([9], len(prompts[1]), pages[1], slots[1]),
    ]
    chunk = Segment(prompts[2], 0, pages[2], slots[2])
    hidden = engine.forward(PackedRows.of(blocks, [chunk]))
    assert_close(hidden[:4], whole(target, [*prompts[0], 1, 2, 3, 4])[-4:])
    assert_close(hidden[4:5], whole(target, [*prompts[1], 9])[-1:])
    assert_close(hidden[5:], whole(target, prompts[2]))


def test_single_rows_are_computed_as_in_larger_batches(target: TargetModel) -> None:
    """Products of one to three rows may differ in the last bits; padded ones do not."""
    tokens = random_prompts(1, seed=6, max_length=40)[0]
    rows = []
    for width in (1, 2, 3, 8):
        engine = fresh_engine(target)
        slot = engine.state_pool.allocate()
        engine.forward(PackedRows.of(chunks=[Segment(tokens, 0, PAGES, slot)]))
        block = Segment([5] * width, len(tokens), PAGES, slot)
        rows.append(engine.forward(PackedRows.of([block]))[0])
    for row in rows[1:]:
        torch.testing.assert_close(row, rows[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_logits_of_few_rows_are_computed_as_those_of_more(target: TargetModel, num_rows: int) -> None:
    engine = fresh_engine(target)
    hidden = torch.randn(4, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(engine.logits(hidden[:num_rows]), engine.logits(hidden)[:num_rows])


def test_features_are_read_as_they_were_written_across_page_borders(target: TargetModel) -> None:
    tokens = [t % 200 for t in range(50)]
    engine = fresh_engine(target)
    slot = engine.state_pool.allocate()
    engine.forward(PackedRows.of(chunks=[Segment(tokens, 0, PAGES, slot)]))
    table = PageTable(1)
    table.write(0, PAGES)
    everything = engine.read_features(table, *np.array([[0], [0], [50]]))
    assert everything.shape == (50, 8 * 4)
    assert torch.from_numpy(everything.copy()).view(torch.float32).isfinite().all()
    parts = engine.read_features(table, *np.array([[0, 0], [13, 0], [24, 16]]))
    assert (parts == np.concatenate((everything[13:37], everything[:16]))).all()


def test_a_target_that_gives_no_finite_numbers_stops_the_pass() -> None:
    target = random_target(dense_config(), seed=2)
    target.model.embed_tokens.weight[7] = torch.nan
    engine = fresh_engine(target)
    slot = engine.state_pool.allocate()
    engine.forward(PackedRows.of(chunks=[Segment([1, 2, 3], 0, PAGES, slot)]))
    with pytest.raises(FloatingPointError):
        engine.forward(PackedRows.of(chunks=[Segment([7], 3, PAGES, slot)]))
