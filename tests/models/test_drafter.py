from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dspine_cluster.errors import MismatchError
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftOutput
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_init import build_drafter
from tests.models.drafter_cases import (
    FULL,
    SLIDING,
    Block,
    anchors_of,
    dense_logits,
    dense_states,
    paged_context,
    random_block,
    random_drafter,
    sampling_of,
    small_config,
)

CONFIGS = {
    "dspine, full": small_config(),
    "dspine, one sliding layer": small_config(layer_types=(FULL, SLIDING, FULL), sliding_window=9),
    "dspine, all sliding": small_config(layer_types=(SLIDING,) * 3, sliding_window=9),
    "dspine, window inside the block": small_config(layer_types=(SLIDING, FULL, SLIDING), sliding_window=3),
    "dspine, null window": small_config(layer_types=(SLIDING,) * 3, sliding_window=None),
    "dflash, bidirectional": small_config("dflash"),
    "dflash, causal": small_config("dflash", is_causal=(True,) * 3),
    "dflash, sliding layers causal": small_config(
        "dflash", layer_types=(SLIDING, FULL, SLIDING), sliding_window=9, is_causal=(True, False, True)
    ),
    "dflash, bidirectional window": small_config("dflash", layer_types=(SLIDING,) * 3, sliding_window=4),
    "one head": small_config(num_heads=1, num_kv_heads=1),
    "ungrouped odd heads": small_config(num_heads=3, num_kv_heads=3, block_size=2),
}


def run(config: DrafterConfig, blocks: list[Block], sampling: DraftSampling | None = None) -> DraftOutput:
    drafter = random_drafter(config)
    anchors, positions = anchors_of(blocks)
    return drafter.draft(
        anchors, positions, paged_context(drafter, blocks), sampling or DraftSampling.greedy(len(blocks))
    )


def assert_same(actual: DraftOutput, expected: DraftOutput, row: int = 0) -> None:
    """Row 0 of `actual` is row `row` of `expected`."""
    assert torch.equal(actual.tokens[0], expected.tokens[row])
    assert torch.equal(actual.candidates[0], expected.candidates[row])
    torch.testing.assert_close(actual.probs[0], expected.probs[row], atol=1e-5, rtol=0)
    torch.testing.assert_close(actual.confidence[0], expected.confidence[row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("position", "start"), [(0, 0), (1, 0), (26, 0), (37, 20), (48, 47)])
def test_states_equal_the_dense_definition(name: str, position: int, start: int) -> None:
    drafter = random_drafter(CONFIGS[name])
    block = random_block(drafter.config, position, start)
    anchors, positions = anchors_of([block])
    hidden, before = drafter.run_layers(anchors, positions, paged_context(drafter, [block]))
    dense_hidden, dense_before = dense_states(drafter, block)
    torch.testing.assert_close(hidden[0], dense_hidden, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(before[0], dense_before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_candidates_are_the_top_logits(name: str) -> None:
    drafter = random_drafter(CONFIGS[name])
    block = random_block(drafter.config, 21)
    hidden, _ = dense_states(drafter, block)
    expected = dense_logits(drafter, hidden[1:]).topk(drafter.config.top_k).indices
    assert torch.equal(run(drafter.config, [block]).candidates[0], expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_block_alone_equals_its_row_in_a_batch(name: str) -> None:
    config = CONFIGS[name]
    places = [(5, 0), (64, 3), (0, 0), (40, 40), (17, 16)]
    blocks = [random_block(config, position, start) for position, start in places]
    temperatures = [0.0, 1.0, 0.7, 0.0, 2.0]
    seeds = [None, 5, 6, None, 7]
    indices = [0, 3, 9, 2, 1]
    batch = run(config, blocks, sampling_of(temperatures, seeds, indices))
    for row, block in enumerate(blocks):
        alone = run(config, [block], sampling_of([temperatures[row]], [seeds[row]], [indices[row]]))
        assert_same(alone, batch, row)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_probs_are_distributions_and_confidences_are_probabilities(name: str, temperature: float) -> None:
    output = run(CONFIGS[name], [random_block(CONFIGS[name], 30)], sampling_of([temperature]))
    torch.testing.assert_close(output.probs.sum(-1), torch.ones_like(output.confidence))
    assert (output.probs >= 0).all()
    assert ((output.confidence > 0) & (output.confidence <= 1)).all()
    assert (output.candidates == output.tokens.unsqueeze(-1)).sum(-1).eq(1).all()


@pytest.mark.parametrize("kind", ["dspine", "dflash"])
def test_the_mask_token_is_never_a_candidate(kind: str) -> None:
    config = CONFIGS["dspine, full" if kind == "dspine" else "dflash, bidirectional"]
    drafter = random_drafter(config)
    block = random_block(config, 12)
    hidden, _ = dense_states(drafter, block)
    drafter.lm_head[config.mask_token_id] = hidden[1:].mean(0) * 100  # the best by far without the exclusion
    anchors, positions = anchors_of([block])
    output = drafter.draft(anchors, positions, paged_context(drafter, [block]), DraftSampling.greedy(1))
    assert not (output.candidates == config.mask_token_id).any()


def test_context_out_of_every_window_may_be_dropped() -> None:
    config = CONFIGS["dspine, all sliding"]
    assert config.context_window == 9
    whole = random_block(config, 70)
    needed = replace(whole, start=70 - (9 - 1))
    assert_same(run(config, [needed]), run(config, [whole]))
    short = run(config, [replace(whole, start=70 - 5)])
    assert not torch.equal(short.probs, run(config, [whole]).probs)


@pytest.mark.parametrize("kind", ["dspine", "dflash"])
def test_context_projected_in_pieces_equals_the_whole(kind: str) -> None:
    drafter = random_drafter(CONFIGS["dspine, full" if kind == "dspine" else "dflash, bidirectional"])
    features = torch.randn(21, drafter.config.hidden_size)
    positions = torch.arange(100, 121)
    whole = drafter.project_context(features, positions)
    pieces = [drafter.project_context(features[i:j], positions[i:j]) for i, j in [(0, 1), (1, 5), (5, 21)]]
    for index in range(2):
        pieced = torch.cat([piece[index] for piece in pieces], 1)
        torch.testing.assert_close(pieced, whole[index], atol=1e-5, rtol=1e-5)


def test_the_targets_weights_are_shared_and_not_saved() -> None:
    config = small_config()
    embedding, lm_head = torch.randn(80, 24), torch.nn.Parameter(torch.randn(80, 24))
    drafter = build_drafter(config, embedding=embedding, lm_head=lm_head, seed=0)
    assert drafter.lm_head.data_ptr() == lm_head.data_ptr()
    assert drafter.embedding.data_ptr() == embedding.data_ptr()
    assert not {"embedding", "lm_head"} & set(drafter.state_dict())
    assert all(parameter is not lm_head for parameter in drafter.parameters())


@pytest.mark.parametrize(("rows", "width"), [(81, 24), (80, 23)])
def test_a_target_of_another_size_is_refused(rows: int, width: int) -> None:
    with pytest.raises(MismatchError, match="lm_head"):
        build_drafter(small_config(), embedding=torch.randn(80, 24), lm_head=torch.randn(rows, width), seed=0)
