"""Random transformers models of several shapes: the numeric reference of the targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

VOCAB = 131

QWEN3_5_SHAPES: dict[str, dict[str, Any]] = {
    "miniature": {},
    "odd-heads-tied": {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 40,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 24,
        "tie_word_embeddings": True,
    },
    "grouped-by-five": {
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 5,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3,
        "num_hidden_layers": 5,
        "layer_types": ["full_attention", *["linear_attention"] * 3, "full_attention"],
    },
}

QWEN3_SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "odd-heads-tied": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    "biased": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
}


def hf_qwen3_5(seed: int = 0, **overrides: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "tie_word_embeddings": False,
    }
    return _randomise(Qwen3_5ForCausalLM(Qwen3_5TextConfig(**settings | overrides)), seed)


def hf_qwen3(seed: int = 0, **overrides: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": False,
    }
    return _randomise(Qwen3ForCausalLM(Qwen3Config(**settings | overrides)), seed)


def hf_logits(model: Any, tokens: Tensor) -> Tensor:
    """Float32 logits `[num_tokens, vocab]` of one sequence, in one pass from an empty past."""
    with torch.no_grad():
        logits: Tensor = model(tokens[None]).logits[0].float()
    return logits


def random_tokens(*lengths: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=random) for length in lengths]


def _randomise(model: Any, seed: int) -> Any:
    """Weights far from their initial identity, so that no norm, bias or gate can be left out unseen.

    Matrices stay small enough that a relative change of 1e-7 of the embeddings moves logits by less than 1e-4;
    with larger ones transformers' own prefill and decode differ by more than the tolerance.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(0.05, 4.0, generator=random).log_()
            elif parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.3)
            else:
                parameter.normal_(std=0.08, generator=random)
    return model.float().eval()
