from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.qwen3_5 import make_qwen3_5
from dspine_cluster.models.target import TargetModel
from tests.models.hf_models import hf_logits, hf_qwen3_5, random_tokens


def pair() -> tuple[TargetModel, Any]:
    reference = hf_qwen3_5()
    model = make_qwen3_5(parse_target_config(reference.config.to_dict()))
    model.load_state_dict(reference.state_dict())
    return model, reference


def run(model: TargetModel, sequences: list[Tensor]) -> Tensor:
    length = len(sequences[0])
    positions = torch.arange(length).repeat(len(sequences))
    output = model(torch.cat(sequences), positions, SequenceCache(len(sequences), length))
    return model.logits(output.hidden).view(len(sequences), length, -1)


def test_packed_sequences_do_not_see_each_other() -> None:
    model, reference = pair()
    sequences = random_tokens(80, 80, 80)
    with torch.no_grad():
        logits = run(model, sequences)
    for row, sequence in enumerate(sequences):
        assert (logits[row] - hf_logits(reference, sequence)).abs().max() < 1e-4


def test_gradients_equal_transformers() -> None:
    model, reference = pair()
    sequences = random_tokens(70, 70)
    labels = torch.stack(random_tokens(70, 70, seed=1))
    for logits in (run(model, sequences), reference(torch.stack(sequences)).logits):
        torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    wanted = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradient = wanted[name].grad
        assert (parameter.grad - gradient).norm() < 1e-3 * gradient.norm(), name
