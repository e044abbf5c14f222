from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from dspine_cluster.errors import CheckpointError
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target, read_target_config, save_target
from tests.models.hf_models import QWEN3_5_SHAPES, hf_logits, hf_qwen3, hf_qwen3_5, random_tokens
from tests.models.test_config import HYBRID
from tests.random_targets import build_target

CPU = torch.device("cpu")
(TOKENS,) = random_tokens(30)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> TargetModel:
    return load_target(folder, dtype=dtype, device=CPU)


@torch.no_grad()
def logits_of(model: TargetModel) -> torch.Tensor:
    return model.logits(model(TOKENS, torch.arange(30), SequenceCache(1, 30)).hidden)


@pytest.mark.parametrize("shard_size", ["1GB", "100KB"])
@pytest.mark.parametrize("name", ["dense", *QWEN3_5_SHAPES])
def test_what_transformers_saves_loads_equal(tmp_path: Path, name: str, shard_size: str) -> None:
    reference = hf_qwen3() if name == "dense" else hf_qwen3_5(**QWEN3_5_SHAPES[name])
    reference.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard_size == "100KB")
    assert (logits_of(load(tmp_path)) - hf_logits(reference, TOKENS)).abs().max() < 1e-4


def test_a_multimodal_checkpoint_loads_its_text_part(tmp_path: Path) -> None:
    text = hf_qwen3_5()
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 64,
    }
    config = Qwen3_5Config(text_config=text.config.to_dict(), vision_config=vision)
    whole = Qwen3_5ForConditionalGeneration(config).float()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("model.language_model.") for name in stored)
    assert any(".visual." in name for name in stored)
    save_file({**stored, "mtp.fc.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert (logits_of(load(tmp_path)) - hf_logits(text, TOKENS)).abs().max() < 1e-4


@pytest.mark.parametrize("is_tied", [False, True])
def test_what_is_saved_loads_in_transformers(tmp_path: Path, is_tied: bool) -> None:
    model = build_target(parse_target_config({**HYBRID, "tie_word_embeddings": is_tied}), seed=0)
    save_target(model, tmp_path, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert (logits_of(model) - hf_logits(reference, TOKENS)).abs().max() < 1e-4


def test_saving_and_loading_keeps_every_bit(tmp_path: Path) -> None:
    model = build_target(parse_target_config(HYBRID), seed=0)
    save_target(model, tmp_path, dtype=torch.float32)
    loaded = load(tmp_path)
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_decay_rates_stay_fp32_when_the_rest_is_cast(tmp_path: Path) -> None:
    model = build_target(parse_target_config(HYBRID), seed=0)
    save_target(model, tmp_path, dtype=torch.bfloat16)
    loaded = load(tmp_path, torch.bfloat16).state_dict()
    dtypes = {name: tensor.dtype for name, tensor in loaded.items()}
    rates = {name for name in dtypes if name.endswith("A_log")}
    assert len(rates) == 6
    assert all(dtypes[name] == (torch.float32 if name in rates else torch.bfloat16) for name in dtypes)
    assert all(torch.equal(loaded[name], model.state_dict()[name]) for name in rates)


def test_a_loaded_target_is_for_inference(tmp_path: Path) -> None:
    save_target(build_target(parse_target_config(HYBRID), seed=0), tmp_path, dtype=torch.float32)
    model = load(tmp_path)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.3.self_attn.q_norm.weight"),
            r"missing.*layers\.3\.self_attn\.q_norm\.weight",
        ),
        (lambda t: t.update({"model.extra": torch.ones(2)}), r"surplus.*model\.extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(7)}),
            r"model\.norm\.weight \[7\] instead of \[192\]",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(64)}),
            r"surplus.*layers\.0",
        ),
    ],
)
def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path, change: Any, message: str) -> None:
    save_target(build_target(parse_target_config(HYBRID), seed=0), tmp_path, dtype=torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_many_wrong_tensors_are_counted(tmp_path: Path) -> None:
    save_target(build_target(parse_target_config(HYBRID), seed=0), tmp_path, dtype=torch.float32)
    save_file({"model.norm.weight": torch.zeros(192)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing.* and \d+ more"):
        load(tmp_path)


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    assert read_target_config(tmp_path).eos_token_ids == (5,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 5]}))
    assert read_target_config(tmp_path).eos_token_ids == (5, 9)


def test_what_becomes_of_the_file_does_not_touch_loaded_weights(tmp_path: Path) -> None:
    hf_qwen3().save_pretrained(tmp_path)
    target = load(tmp_path)
    before = [parameter.clone() for parameter in target.parameters()]
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as opened:  # in place, as `cp` does
        opened.write(b"\0" * file.stat().st_size)
    assert all(map(torch.equal, target.parameters(), before))
