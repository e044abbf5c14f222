"""The runner: features in, drafts out, without regard to how they are batched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dspine_cluster.drafter import runner as runner_module
from dspine_cluster.drafter.context_rows import DraftPages
from dspine_cluster.drafter.runner import Arrival, DraftRunner
from tests.drafter.harness import expected_output, item_of, raw_rows
from tests.drafts import draft_of
from tests.models.drafter_cases import random_block, random_drafter, small_config

PAGES = [5, 2, 4]
SLOTS = np.array([page * 16 + offset for page in PAGES for offset in range(16)])


def pages_of(pages: list[int]) -> DraftPages:
    """Of one context that begins at position 0."""
    return DraftPages(
        np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([pages], np.int64).reshape(1, -1)
    )


def test_features_are_projected_in_pieces_as_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = random_drafter(small_config())
    block = random_block(drafter.config, 40)
    monkeypatch.setattr(runner_module, "_INGEST_TOKENS", 7)
    runner = DraftRunner(drafter, 6, random_seed=1)
    rows = raw_rows(block.features)
    runner.ingest(
        [
            Arrival(rows[25:], torch.float32, np.arange(25, 40), SLOTS[25:40]),
            Arrival(rows[:25], torch.float32, np.arange(25), SLOTS[:25]),
        ]
    )
    drafts = runner.draft(draft_of([item_of(block, 1)]), pages_of(PAGES))
    expected = expected_output(drafter, block, item_of(block, 1))
    assert drafts.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(drafts.confidence, expected.confidence.numpy(), atol=1e-5)
    assert drafts.is_finite is None


def test_of_rows_for_the_same_slot_the_last_is_kept() -> None:
    drafter = random_drafter(small_config())
    old, new = random_block(drafter.config, 16, seed=1), random_block(drafter.config, 16, seed=2)
    runner = DraftRunner(drafter, 6, random_seed=1)
    runner.ingest(
        [Arrival(raw_rows(block.features), torch.float32, np.arange(16), SLOTS[:16]) for block in (old, new)]
    )
    drafts = runner.draft(draft_of([item_of(new, 1)]), pages_of(PAGES[:1]))
    assert drafts.tokens.tolist() == expected_output(drafter, new, item_of(new, 1)).tokens.tolist()


def test_nothing_to_ingest_is_fine_and_warming_up_leaves_no_trace() -> None:
    drafter = random_drafter(small_config())
    runner = DraftRunner(drafter, 6, random_seed=1)
    runner.warm_up()
    runner.ingest([])
    block = random_block(drafter.config, 0)
    drafts = runner.draft(draft_of([item_of(block, 1)]), pages_of([0]))
    assert drafts.tokens.tolist() == expected_output(drafter, block, item_of(block, 1)).tokens.tolist()
