from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspine_cluster.errors import CheckpointError, MismatchError
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_init import build_feature_projector
from dspine_cluster.models.drafter_weights import (
    expected_shapes,
    load_drafter,
    load_feature_projector,
    save_drafter,
)
from tests.models.drafter_cases import (
    FULL,
    anchors_of,
    paged_context,
    random_block,
    random_drafter,
    sampling_of,
    small_config,
)

CPU = torch.device("cpu")


def save_random(folder: Path, kind: Literal["dspine", "dflash"] = "dspine") -> Drafter:
    drafter = random_drafter(small_config(kind))
    save_drafter(drafter, build_feature_projector(drafter.config, seed=1), folder, torch.float32)
    return drafter


def load(folder: Path, like: Drafter, dtype: torch.dtype = torch.float32) -> Drafter:
    return load_drafter(folder, embedding=like.embedding, lm_head=like.lm_head, dtype=dtype, device=CPU)


def to_second_layout(folder: Path) -> None:
    """Codes move to transfer.safetensors, the config goes under `config`."""
    tensors = load_file(folder / "model.safetensors")
    save_file({"codes": tensors.pop("transfer_codes")}, folder / "transfer.safetensors")
    del tensors["transfer_ready"]
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"config": config}))


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["dspine", "dflash"])
def test_a_saved_drafter_loads_as_it_was(tmp_path: Path, kind: Literal["dspine", "dflash"]) -> None:
    saved = save_random(tmp_path, kind)
    loaded = load(tmp_path, saved)
    assert loaded.config == saved.config
    assert loaded.state_dict().keys() == saved.state_dict().keys()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_both_layouts_draft_the_same(tmp_path: Path) -> None:
    saved = save_random(tmp_path)
    blocks = [random_block(saved.config, 20)]
    drafts = []
    for _ in range(2):
        drafter = load(tmp_path, saved)
        anchors, positions = anchors_of(blocks)
        drafts.append(
            drafter.draft(anchors, positions, paged_context(drafter, blocks), sampling_of([1.0], [3]))
        )
        if not (tmp_path / "transfer.safetensors").exists():
            to_second_layout(tmp_path)
    assert torch.equal(drafts[0].tokens, drafts[1].tokens)
    assert torch.equal(drafts[0].probs, drafts[1].probs)


def test_the_projector_loads_from_both_layouts(tmp_path: Path) -> None:
    drafter = random_drafter(small_config())
    projector = build_feature_projector(drafter.config, seed=1)
    save_drafter(drafter, projector, tmp_path, torch.float32)
    taps = torch.randn(4, 48)
    first = load_feature_projector(tmp_path, torch.float32, CPU)(taps)
    to_second_layout(tmp_path)
    assert torch.equal(first, projector(taps))
    assert torch.equal(load_feature_projector(tmp_path, torch.float32, CPU)(taps), first)


def test_tensors_carry_the_published_names(tmp_path: Path) -> None:
    save_random(tmp_path)
    expected = {
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        "transfer_codes",
        "transfer_ready",
        "injection.bias",
    }
    expected |= {f"injection.{name}.weight" for name in ("message", "receiver_gate", "predecessor_gate")}
    for i in range(3):
        expected |= {f"injection.readouts.{i}.weight", f"injection.writes.{i}.weight"}
        expected |= {f"layers.{i}.self_attn.{name}_proj.weight" for name in "qkvo"}
        expected |= {f"layers.{i}.self_attn.{name}_norm.weight" for name in "qk"}
        expected |= {f"layers.{i}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
        expected |= {f"layers.{i}.{name}_layernorm.weight" for name in ("input", "post_attention")}
    assert set(load_file(tmp_path / "model.safetensors")) == expected


def test_weights_are_cast_when_saved_and_when_loaded(tmp_path: Path) -> None:
    drafter = random_drafter(small_config())
    save_drafter(drafter, build_feature_projector(drafter.config, seed=1), tmp_path, torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for name, tensor in stored.items() if name != "transfer_ready"} == {torch.bfloat16}
    loaded = load(tmp_path, drafter)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_missing_surplus_and_misshapen_tensors_are_all_named(tmp_path: Path) -> None:
    saved = save_random(tmp_path)

    def damage(tensors: dict[str, Tensor]) -> None:
        del tensors["norm.weight"]
        del tensors["fc.weight"]
        tensors["layers.7.bias"] = torch.zeros(1)
        tensors["injection.bias"] = torch.zeros(11)

    change(tmp_path, damage)
    for read in (lambda: load(tmp_path, saved), lambda: load_feature_projector(tmp_path, torch.float32, CPU)):
        with pytest.raises(CheckpointError) as error:
            read()
        for problem in (
            "missing norm.weight",
            "missing fc.weight",
            "surplus layers.7.bias",
            "misshapen injection.bias",
        ):
            assert problem in str(error.value)


def test_absent_codes_are_named(tmp_path: Path) -> None:
    saved = save_random(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop("transfer_codes"))
    with pytest.raises(CheckpointError, match="missing transfer_codes"):
        load(tmp_path, saved)


def test_codes_saved_before_they_were_set_are_refused(tmp_path: Path) -> None:
    saved = save_random(tmp_path)
    change(tmp_path, lambda tensors: tensors.update(transfer_ready=torch.tensor(False)))
    with pytest.raises(CheckpointError, match="transfer_ready"):
        load(tmp_path, saved)


def test_a_checkpoint_that_does_not_mention_readiness_loads(tmp_path: Path) -> None:
    saved = save_random(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop("transfer_ready"))
    assert bool(load(tmp_path, saved).state_dict()["transfer_ready"])


def test_codes_in_both_places_are_refused(tmp_path: Path) -> None:
    saved = save_random(tmp_path)
    save_file({"codes": torch.zeros(80, 12)}, tmp_path / "transfer.safetensors")
    with pytest.raises(CheckpointError, match="transfer_codes"):
        load(tmp_path, saved)


def test_a_target_of_another_size_is_refused(tmp_path: Path) -> None:
    save_random(tmp_path)
    other = torch.randn(90, 24)
    with pytest.raises(MismatchError, match="embedding"):
        load_drafter(tmp_path, embedding=other, lm_head=other, dtype=torch.float32, device=CPU)


def test_a_drafter_for_27b_has_the_published_size() -> None:
    config = DrafterConfig(
        kind="dspine",
        hidden_size=5120,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=17408,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        vocab_size=248320,
        block_size=16,
        mask_token_id=248070,
        target_layer_ids=(1, 16, 31, 46, 61),
        layer_types=(FULL,) * 5,
        sliding_window=None,
        is_causal=(True,) * 5,
        transfer_rank=1024,
        message_size=512,
    )
    assert sum(math.prod(shape) for shape in expected_shapes(config).values()) == pytest.approx(
        2.026e9, rel=1e-3
    )
