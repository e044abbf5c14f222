from __future__ import annotations

from typing import Any

import pytest
import torch

from dspine_cluster.models import packed_injection, packed_rotary
from dspine_cluster.models.packed_drafter import PackedDrafter
from tests.models.drafter_cases import (
    FULL,
    SLIDING,
    anchors_of,
    paged_context,
    random_block,
    random_drafter,
    small_config,
)

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "one sliding layer": {"layer_types": (FULL, SLIDING, FULL), "sliding_window": 9},
    "all sliding": {"layer_types": (SLIDING,) * 3, "sliding_window": 4},
    "dflash": {"kind": "dflash"},
    "wide candidates": {"top_k": 16},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("positions", [(0,), (3, 18, 40)])
@torch.inference_mode()
def test_candidates_and_rows_are_the_modules(case: str, positions: tuple[int, ...]) -> None:
    drafter = random_drafter(small_config(**CASES[case]))
    blocks = [random_block(drafter.config, position, seed=position) for position in positions]
    context = paged_context(drafter, blocks)
    candidates, rows = PackedDrafter(drafter).candidates(*anchors_of(blocks), context)
    expected_candidates, expected_rows = drafter.candidates(*anchors_of(blocks), context)
    assert torch.equal(candidates, expected_candidates)
    torch.testing.assert_close(rows, expected_rows, atol=2e-5, rtol=2e-5)


@torch.inference_mode()
def test_a_vocabulary_too_large_for_a_table_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = random_drafter(small_config())
    block = random_block(drafter.config, 18)
    context = paged_context(drafter, [block])
    _, expected = PackedDrafter(drafter).candidates(*anchors_of([block]), context)
    monkeypatch.setattr(packed_injection, "_MAX_TABLE_BYTES", 0)
    _, rows = PackedDrafter(drafter).candidates(*anchors_of([block]), context)
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_context_is_the_modules_at_any_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rotary, "_FIRST_POSITIONS", 16)
    drafter = random_drafter(small_config())
    packed = PackedDrafter(drafter)
    features = torch.randn(5, drafter.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for positions in (torch.arange(5), torch.tensor([3, 700, 15, 16, 64])):
        for actual, expected in zip(
            packed.project_context(features, positions),
            drafter.project_context(features, positions),
            strict=True,
        ):
            torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


def test_it_is_for_single_precision() -> None:
    drafter = random_drafter(small_config())
    assert PackedDrafter.fits(drafter)
    drafter.lm_head = drafter.lm_head.bfloat16()
    assert not PackedDrafter.fits(drafter)
