from __future__ import annotations

import pytest
import torch

from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.qwen3 import make_qwen3
from tests.models.hf_models import QWEN3_SHAPES, hf_logits, hf_qwen3, random_tokens
from tests.models.parity import RUNS


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", QWEN3_SHAPES)
@torch.inference_mode()
def test_logits_equal_transformers_for_unequal_lengths(shape: str, run: str) -> None:
    reference = hf_qwen3(**QWEN3_SHAPES[shape])
    model = make_qwen3(parse_target_config(reference.config.to_dict()))
    model.load_state_dict(reference.state_dict(), strict=not model.config.tie_word_embeddings)
    requests = random_tokens(90, 41, 65)
    for tokens, logits in zip(requests, RUNS[run](model, requests), strict=True):
        assert (logits - hf_logits(reference, tokens)).abs().max() < 1e-4
