from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dspine_cluster.miniature.drafter_training import TrainingOutput, training_forward
from dspine_cluster.miniature.losses import (
    alignment_weight,
    drafter_loss,
    refined_loss,
    replacement_probability,
)
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.dspine import DSpine
from tests.models.drafter_cases import random_drafter, small_config

LENGTH = 20
GENERATOR = torch.Generator().manual_seed(4)
TOKENS = torch.randint(0, 79, (2, LENGTH), generator=GENERATOR)
FEATURES = torch.randn(2, LENGTH, 24, generator=GENERATOR)
TARGET_HIDDEN = torch.randn(2, LENGTH, 24, generator=GENERATOR)
ANCHORS = torch.tensor([[2, 8], [11, 17]])


def output_of(drafter: Drafter) -> TrainingOutput:
    return training_forward(drafter, FEATURES, TOKENS, ANCHORS)


def test_alignment_rises_to_a_half_over_146_steps() -> None:
    assert [alignment_weight(step) for step in (0, 73, 146, 1000)] == [0.0, 0.25, 0.5, 0.5]


def test_true_predecessors_fade_between_a_sixth_and_a_third_of_training() -> None:
    probabilities = [replacement_probability(step, 600) for step in (0, 100, 150, 200, 599)]
    assert probabilities == pytest.approx([0.5, 0.5, 0.25, 0.0, 0.0])


def test_the_loss_equals_its_definition_label_by_label() -> None:
    drafter = random_drafter(small_config())
    assert isinstance(drafter, DSpine)
    output = output_of(drafter)
    assert output.transfer is not None
    beta = 0.3
    total_weight = unary = refined = alignment = 0.0
    for s in range(2):
        for a, anchor in enumerate(ANCHORS[s].tolist()):
            for j in range(1, 6):
                if anchor + j >= LENGTH:
                    continue
                label = int(TOKENS[s, anchor + j])
                weight = math.exp(-(j - 1) / 7)
                teacher = (drafter.lm_head @ TARGET_HIDDEN[s, anchor + j - 1]).softmax(-1)
                logits = drafter.lm_head @ output.hidden[s, a, j - 1]
                cross_entropy = -float(logits.log_softmax(-1)[label])
                distance = float((logits.softmax(-1) - teacher).abs().sum())
                allowed = logits.clone()
                allowed[drafter.config.mask_token_id] = -torch.inf
                candidates = allowed.topk(drafter.config.top_k).indices
                state = drafter.refine(output.before_injection[s, a, j - 1], TOKENS[s, anchor + j - 1])
                scores = drafter.lm_head[candidates] @ state
                cosines = F.cosine_similarity(
                    output.transfer[:, s, a, j - 1], drafter.transfer_codes[label], dim=-1
                )
                total_weight += weight
                unary += weight * (0.1 * cross_entropy + 0.9 * distance)
                one_row = (scores[None], candidates[None], teacher[None], torch.tensor([label]))
                refined += weight * float(refined_loss(*one_row))
                alignment += weight * beta * cross_entropy * float((1 - cosines).sum())
    loss = drafter_loss(drafter, output, TARGET_HIDDEN, beta)
    assert float(loss.unary) == pytest.approx(unary / total_weight, rel=1e-4)
    assert float(loss.refined) == pytest.approx(refined / total_weight, rel=1e-4)
    assert float(loss.alignment) == pytest.approx(alignment / total_weight, rel=1e-4)
    assert float(loss.total) == pytest.approx(float(loss.unary + loss.refined + loss.alignment), rel=1e-6)


def test_dflash_has_the_unary_loss_alone() -> None:
    drafter = random_drafter(small_config("dflash"))
    loss = drafter_loss(drafter, output_of(drafter), TARGET_HIDDEN, 0.5)
    assert float(loss.total) == float(loss.unary) > 0
    assert float(loss.refined) == float(loss.alignment) == 0


def test_states_without_a_valid_label_do_not_count() -> None:
    drafter = random_drafter(small_config())
    output = output_of(drafter)
    hidden = torch.where(output.is_valid.unsqueeze(-1), output.hidden, 1e3)
    changed = drafter_loss(drafter, replace(output, hidden=hidden), TARGET_HIDDEN, 0.5)
    assert not output.is_valid.all()
    assert float(changed.total) == float(drafter_loss(drafter, output, TARGET_HIDDEN, 0.5).total)


def test_a_batch_without_labels_costs_nothing() -> None:
    drafter = random_drafter(small_config())
    output = training_forward(
        drafter, FEATURES, TOKENS, ANCHORS, label_mask=torch.zeros(2, LENGTH, dtype=torch.bool)
    )
    assert float(drafter_loss(drafter, output, TARGET_HIDDEN, 0.5).total) == 0


def test_refined_cross_entropy_counts_only_where_the_label_is_a_candidate() -> None:
    scores, candidates = torch.tensor([[1.0, 2.0]]), torch.tensor([[3, 5]])
    teacher = torch.zeros(1, 10)
    teacher[0, 3], teacher[0, 5] = scores.softmax(-1)[0]
    absent = refined_loss(scores, candidates, teacher, torch.tensor([4]))
    present = refined_loss(scores, candidates, teacher, torch.tensor([5]))
    assert float(absent) == pytest.approx(0, abs=1e-6)
    assert float(present) == pytest.approx(-0.1 * float(scores.log_softmax(-1)[0, 1]), rel=1e-5)


@pytest.mark.parametrize(("mass", "counts"), [(0.5, True), (2e-4, True), (1e-4, False), (0.0, False)])
def test_refined_distance_is_to_the_renormalised_teacher_and_needs_some_mass(
    mass: float, counts: bool
) -> None:
    scores, candidates = torch.zeros(1, 2), torch.tensor([[3, 5]])
    teacher = torch.zeros(1, 10)
    teacher[0, 3] = mass  # renormalised: all on the first candidate, one unit of L1 from (1/2, 1/2)
    loss = refined_loss(scores, candidates, teacher, torch.tensor([0]))
    assert float(loss) == pytest.approx(0.9 if counts else 0.0, abs=1e-5)


def test_the_alignment_weights_by_cross_entropy_without_training_it() -> None:
    drafter = random_drafter(small_config()).requires_grad_(True)
    loss = drafter_loss(drafter, output_of(drafter), TARGET_HIDDEN, 0.5)
    (gradient,) = torch.autograd.grad(loss.alignment, drafter.norm.weight, allow_unused=True)
    assert gradient is None  # the final norm feeds the logits, and the features not at all
