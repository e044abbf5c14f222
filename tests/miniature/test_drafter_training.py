from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dspine_cluster.miniature.drafter_training import TrainingOutput, training_forward
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.dspine import DSpine
from tests.models.drafter_cases import (
    FULL,
    SLIDING,
    Block,
    dense_states,
    random_drafter,
    rms,
    small_config,
    unit,
)

CONFIGS = {
    "dspine": small_config(),
    "dspine, sliding": small_config(layer_types=(SLIDING, FULL, SLIDING), sliding_window=7),
    "dflash": small_config("dflash"),
    "dflash, sliding": small_config(
        "dflash", layer_types=(SLIDING, FULL, SLIDING), sliding_window=7, is_causal=(True, False, True)
    ),
}
LENGTH = 24
GENERATOR = torch.Generator().manual_seed(3)
TOKENS = torch.randint(0, 79, (2, LENGTH), generator=GENERATOR)
FEATURES = torch.randn(2, LENGTH, 24, generator=GENERATOR)
ANCHORS = torch.tensor([[1, 9, 17], [4, 20, 22]])


def forward(drafter: Drafter, **options: Any) -> TrainingOutput:
    return training_forward(drafter, FEATURES, TOKENS, ANCHORS, **options)


def block_at(sequence: int, anchor: int) -> Block:
    return Block(FEATURES[sequence, :anchor], anchor=int(TOKENS[sequence, anchor]))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_block_of_a_sequence_equals_a_draft_with_its_whole_context(name: str) -> None:
    drafter = random_drafter(CONFIGS[name])
    output = forward(drafter)
    norm = drafter.state_dict()["norm.weight"]
    for s in range(2):
        for a, anchor in enumerate(ANCHORS[s].tolist()):
            hidden, before = dense_states(drafter, block_at(s, anchor))
            expected = rms(hidden[1:], norm, drafter.config)
            torch.testing.assert_close(output.hidden[s, a], expected, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(output.before_injection[s, a], before[1:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_replaced_blocks_see_true_predecessors_in_the_first_layers(num_layers: int) -> None:
    drafter = random_drafter(CONFIGS["dspine"])
    replaced = torch.tensor([[True, False, True], [False, True, False]])
    output = forward(drafter, replaced=replaced, num_replaced_layers=num_layers)
    for s, a in [(0, 0), (0, 1), (0, 2), (1, 0)]:  # blocks inside their sequence
        anchor = int(ANCHORS[s, a])
        known = TOKENS[s, anchor + 1 :].tolist() if replaced[s, a] else []
        _, before = dense_states(drafter, block_at(s, anchor), known, num_layers if known else 0)
        torch.testing.assert_close(output.before_injection[s, a], before[1:], atol=1e-4, rtol=1e-4)


def test_transfer_features_are_those_after_injection() -> None:
    drafter = random_drafter(CONFIGS["dspine"])
    output = forward(drafter)
    assert output.transfer is not None
    assert output.transfer.shape == (3, 2, 3, 5, 12)
    hidden, _ = dense_states(drafter, block_at(0, 9))
    readout = drafter.state_dict()["injection.readouts.2.weight"]
    for j in range(5):
        torch.testing.assert_close(
            output.transfer[2, 0, 1, j], unit(readout @ hidden[j + 1]), atol=1e-4, rtol=1e-4
        )


def test_labels_and_predecessors_are_the_tokens_after_the_anchor() -> None:
    output = forward(random_drafter(CONFIGS["dflash"]))
    assert output.transfer is None
    assert output.labels[0, 1].tolist() == TOKENS[0, 10:15].tolist()
    assert output.predecessors[0, 1].tolist() == TOKENS[0, 9:14].tolist()
    assert output.label_positions[0, 1].tolist() == [10, 11, 12, 13, 14]


def test_labels_end_with_the_sequence() -> None:
    output = forward(random_drafter(CONFIGS["dflash"]))
    assert output.is_valid.sum(-1).tolist() == [[5, 5, 5], [5, 3, 1]]
    assert output.labels[1, 1].tolist() == [*TOKENS[1, 21:].tolist(), 0, 0]


def test_labels_end_at_the_first_token_that_may_not_be_one() -> None:
    label_mask = torch.ones(2, LENGTH, dtype=torch.bool)
    label_mask[0, 12] = False
    label_mask[1, 5] = False
    output = forward(random_drafter(CONFIGS["dflash"]), label_mask=label_mask)
    assert output.is_valid.sum(-1).tolist() == [[5, 2, 5], [0, 3, 1]]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_block_never_sees_its_labels_or_features_from_its_anchor_on(name: str) -> None:
    drafter = random_drafter(CONFIGS[name])
    tokens, features = TOKENS.clone(), FEATURES.clone()
    tokens[:, 10:] = (tokens[:, 10:] + 1) % 79
    features[:, 9:] += 1
    changed = training_forward(drafter, features, tokens, ANCHORS)
    torch.testing.assert_close(changed.hidden[0, 1], forward(drafter).hidden[0, 1])


def random_objective(output: TrainingOutput, drafter: Drafter) -> Tensor:
    """A scalar that depends on everything the loss reads."""
    generator = torch.Generator().manual_seed(0)
    read = [output.hidden]
    if isinstance(drafter, DSpine):
        assert output.transfer is not None
        read += [drafter.refine(output.before_injection, output.predecessors), output.transfer]
    return torch.stack([(x * torch.randn(x.shape, generator=generator)).sum() for x in read]).sum()


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_every_parameter_and_the_features(name: str) -> None:
    drafter = random_drafter(CONFIGS[name]).requires_grad_(True)
    features = FEATURES.clone().requires_grad_(True)
    output = training_forward(drafter, features, TOKENS, ANCHORS)
    torch.autograd.backward(random_objective(output, drafter))
    for parameter_name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name
    assert features.grad is not None
    assert features.grad[:, :9].any()
    assert not drafter.lm_head.requires_grad
    assert not drafter.embedding.requires_grad
