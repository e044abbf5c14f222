"""Training objective of the drafters (arXiv 2609.36173, section on training)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.miniature.drafter_training import TrainingOutput
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.dspine import DSpine

POSITION_DECAY = 7.0
CROSS_ENTROPY_SHARE = 0.1
MIN_TEACHER_MASS = 1e-4
ALIGNMENT_WEIGHT = 0.5
ALIGNMENT_WARMUP_STEPS = 146
REPLACEMENT_PROBABILITY = 0.5


@dataclass(frozen=True, slots=True)
class DrafterLoss:
    """Scalars, each the weighted mean over valid labels; `total` is their sum."""

    total: Tensor
    unary: Tensor
    refined: Tensor
    alignment: Tensor


def alignment_weight(step: int) -> float:
    """beta, rising from 0 to 0.5 over the first 146 steps."""
    return ALIGNMENT_WEIGHT * min(max(step, 0) / ALIGNMENT_WARMUP_STEPS, 1.0)


def replacement_probability(step: int, num_steps: int) -> float:
    """Chance that a block sees true predecessors: 0.5 for the first sixth of training, 0 from the third on."""
    share_left = (1 / 3 - step / num_steps) / (1 / 3 - 1 / 6)
    return REPLACEMENT_PROBABILITY * min(max(share_left, 0.0), 1.0)


def drafter_loss(drafter: Drafter, output: TrainingOutput, target_hidden: Tensor, beta: float) -> DrafterLoss:
    """Loss of every proposal, weighted exp(-(j - 1) / 7) by its place j in the block.

    Args:
        drafter: gives the frozen `lm_head`, and for `dspine` the injection and codes.
        output: of `training_forward`.
        target_hidden: the target's states after its final norm, `[S, T, H]`.
        beta: weight of the alignment term, see `alignment_weight`.
    """
    is_valid = output.is_valid
    labels = output.labels[is_valid]  # [n]: from here on one row a valid label
    # The state before a label predicts it.
    before_label = (
        (output.label_positions - 1).flatten(1).unsqueeze(-1).expand(-1, -1, target_hidden.shape[-1])
    )
    teacher_hidden = target_hidden.gather(1, before_label).view(*is_valid.shape, -1)[is_valid]
    with torch.no_grad():
        teacher = F.linear(teacher_hidden.to(drafter.lm_head.dtype), drafter.lm_head).float().softmax(-1)
    decay = torch.exp(-torch.arange(is_valid.shape[-1], device=labels.device) / POSITION_DECAY)
    weights = decay.expand(is_valid.shape)[is_valid]
    weights = weights / weights.sum().clamp(min=1e-6)

    logits = F.linear(output.hidden[is_valid], drafter.lm_head).float()
    cross_entropy = F.cross_entropy(logits, labels, reduction="none")
    distance = (logits.softmax(-1) - teacher).abs().sum(-1)
    unary = (weights * _mixed(cross_entropy, distance)).sum()
    if not isinstance(drafter, DSpine) or output.transfer is None:
        zero = unary.new_zeros(())
        return DrafterLoss(total=unary, unary=unary, refined=zero, alignment=zero)

    candidates = _candidates(logits, drafter)
    states = drafter.refine(output.before_injection[is_valid], output.predecessors[is_valid])
    scores = torch.einsum("nh,nkh->nk", states, drafter.lm_head[candidates].to(states.dtype)).float()
    refined = (weights * refined_loss(scores, candidates, teacher, labels)).sum()
    codes = drafter.transfer_codes[labels]
    cosines = F.cosine_similarity(
        output.transfer[:, is_valid].float(), codes.float(), dim=-1
    )  # [num_layers, n]
    misalignment = (1 - cosines).sum(0)
    alignment = beta * (weights * cross_entropy.detach() * misalignment).sum()
    return DrafterLoss(total=unary + refined + alignment, unary=unary, refined=refined, alignment=alignment)


def refined_loss(scores: Tensor, candidates: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """The mixed loss over the candidates alone, `[n]`.

    Cross-entropy counts only where the label is a candidate; L1 is against the teacher's renormalised mass on the
    candidates and counts only where that mass exceeds 1e-4.

    Args:
        scores: `[n, top_k]` with the true predecessor.
        candidates: int64 `[n, top_k]`.
        teacher: the target's probabilities `[n, vocab_size]`.
        labels: int64 `[n]`.
    """
    is_label = candidates == labels.unsqueeze(-1)
    log_probs = scores.log_softmax(-1)
    cross_entropy = -torch.where(is_label, log_probs, 0.0).sum(-1)
    mass = teacher.gather(-1, candidates)
    total = mass.sum(-1, keepdim=True)
    distance = (log_probs.exp() - mass / total.clamp(min=MIN_TEACHER_MASS)).abs().sum(-1)
    return _mixed(cross_entropy, torch.where(total.squeeze(-1) > MIN_TEACHER_MASS, distance, 0.0))


def _mixed(cross_entropy: Tensor, distance: Tensor) -> Tensor:
    return CROSS_ENTROPY_SHARE * cross_entropy + (1 - CROSS_ENTROPY_SHARE) * distance


def _candidates(logits: Tensor, drafter: Drafter) -> Tensor:
    allowed = logits.detach().clone()
    allowed[:, drafter.config.mask_token_id] = -torch.inf
    return allowed.topk(drafter.config.top_k).indices
