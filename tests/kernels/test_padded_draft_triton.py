"""Drafts in padded buffers, every operation a kernel in the interpreter, beside torch's unpadded ones."""

from __future__ import annotations

import pytest
import torch

from dspine_cluster.engine.draft_graphs import DraftGraphs, DraftPlace
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_kernels import draft_attention, injection, kv_write, transition_cache
from tests.models.drafter_cases import anchors_of, paged_context, random_block, random_drafter, small_config


@pytest.mark.parametrize("window", [None, 20])
def test_recordable_drafts_equal_torchs(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer_type = "full_attention" if window is None else "sliding_attention"
    config = small_config(
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        block_size=4,
        layer_types=(layer_type,) * 2,
        sliding_window=window,
        is_causal=(True, True),
        transfer_rank=16,
        message_size=16,
        top_k=16,
    )
    drafter = random_drafter(config)
    blocks = [
        random_block(config, position, start=start, seed=position) for position, start in ((37, 17), (0, 0))
    ]
    blocks.append(random_block(config, 5))
    context = paged_context(drafter, blocks)
    with torch.inference_mode():
        candidates, rows = drafter.candidates(*anchors_of(blocks), context)
    graphs = DraftGraphs(drafter, DraftPool(context.key_pages, context.value_pages), max_blocks=4)
    places = [
        DraftPlace(block.anchor, block.position, table, int(first), block.start)
        for block, table, first in zip(blocks, context.page_table.tolist(), context.first_pages, strict=True)
    ]
    for module in (draft_attention, injection, kv_write, transition_cache):
        monkeypatch.setattr(module, "uses_triton", lambda tensor: True)
    found = graphs.candidates(places)
    assert found is not None
    assert torch.equal(found[0], candidates)
    torch.testing.assert_close(found[1], rows, atol=1e-4, rtol=1e-3)
