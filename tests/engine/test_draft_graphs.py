"""Padded drafts give what unpadded ones give."""

from __future__ import annotations

import pytest
import torch

from dspine_cluster.engine.draft_graphs import DraftGraphs, DraftPlace
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.models.drafter import Drafter
from tests.models.drafter_cases import (
    Block,
    anchors_of,
    paged_context,
    random_block,
    random_drafter,
    small_config,
)


def places_of(drafter: Drafter, blocks: list[Block]) -> tuple[list[DraftPlace], DraftPool]:
    """The blocks over one pool whose unused slots hold NaN."""
    context = paged_context(drafter, blocks)
    tables = context.page_table.tolist()
    places = [
        DraftPlace(block.anchor, block.position, tables[i], int(context.first_pages[i]), block.start)
        for i, block in enumerate(blocks)
    ]
    return places, DraftPool(context.key_pages, context.value_pages)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 5])
def test_padded_drafts_give_the_candidates_and_rows_of_unpadded_ones(num_blocks: int) -> None:
    drafter = random_drafter(small_config())
    blocks = [random_block(drafter.config, 5 + 21 * i, seed=i) for i in range(num_blocks)]
    places, pool = places_of(drafter, blocks)
    graphs = DraftGraphs(drafter, pool, max_blocks=6)
    with torch.inference_mode():
        candidates, rows = drafter.candidates(*anchors_of(blocks), paged_context(drafter, blocks))
    for _ in range(2):
        found = graphs.candidates(places)
        assert found is not None
        assert torch.equal(found[0], candidates)
        torch.testing.assert_close(found[1], rows, atol=1e-5, rtol=1e-5)


def test_a_smaller_batch_after_a_larger_one_sees_nothing_of_it() -> None:
    drafter = random_drafter(small_config())
    blocks = [random_block(drafter.config, 30 + i, seed=i) for i in range(4)]
    places, pool = places_of(drafter, blocks)
    used, fresh = (DraftGraphs(drafter, pool, max_blocks=4) for _ in range(2))
    used.candidates(places)
    first, second = used.candidates(places[:3]), fresh.candidates(places[:3])
    assert first is not None
    assert second is not None
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_more_blocks_than_are_padded_are_left_to_the_caller() -> None:
    drafter = random_drafter(small_config())
    blocks = [random_block(drafter.config, 9, seed=i) for i in range(3)]
    places, pool = places_of(drafter, blocks)
    assert DraftGraphs(drafter, pool, max_blocks=2).candidates(places) is None


def test_warming_up_reads_no_context() -> None:
    drafter = random_drafter(small_config())
    pool = DraftPool.create(drafter.config, 3, torch.float32, torch.device("cpu"))
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    DraftGraphs(drafter, pool, max_blocks=4).warm_up()
