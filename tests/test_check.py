from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from dspine_cluster import miniature
from dspine_cluster.check import MemoryPlan, check_pair, plan_memory
from dspine_cluster.models.config import parse_target_config
from dspine_cluster.models.drafter_config import parse_drafter_config

TARGET_27B = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
DRAFTER_27B = {
    "model_type": "qwen3",
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1e7,
    "rms_norm_eps": 1e-6,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    "dspine_config": {"transfer_rank": 1024, "message_size": 512, "top_k": 16},
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 8192,
}


@pytest.fixture(scope="module")
def plan() -> MemoryPlan:
    return plan_memory(parse_target_config(TARGET_27B), parse_drafter_config(DRAFTER_27B), torch.bfloat16)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("target_weights", 53.8e9),
        ("kv_per_token", 64 * 1024),
        ("features_per_token", 10.2e3),
        ("context_per_token", 20.5e3),
        ("shared_weights", 5.09e9),
        ("projector_weights", 262e6),
    ],
)
def test_the_plan_of_the_27b_pair_has_the_published_sizes(
    plan: MemoryPlan, figure: str, expected: float
) -> None:
    assert getattr(plan, figure) == pytest.approx(expected, rel=0.005)


def test_the_27b_drafter_takes_the_published_4_05_gb_with_its_codes(plan: MemoryPlan) -> None:
    assert plan.drafter_weights + plan.projector_weights == pytest.approx(4.05e9, rel=0.005)


def test_the_27b_state_is_that_of_48_fp32_layers_and_their_convolutions(plan: MemoryPlan) -> None:
    assert plan.state_per_request == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)


def test_a_block_in_flight_takes_at_most_17_mb_beyond_the_live_state(plan: MemoryPlan) -> None:
    proposals = 48 * 15 * (10240 + 2 * 48) * 2
    assert plan.pending_per_request == proposals <= 17e6


def test_a_longer_context_leaves_room_for_fewer_requests(plan: MemoryPlan) -> None:
    fits = [plan.num_verifier_requests(141 * 10**9, context) for context in (2048, 32768, 262144)]
    assert fits == sorted(fits, reverse=True)
    assert fits[0] > fits[-1] > 0


def test_weights_that_do_not_fit_leave_no_room(plan: MemoryPlan) -> None:
    assert plan.num_verifier_requests(48 * 10**9, 4096) < 0


def test_the_miniature_pair_fits_together() -> None:
    for name in ("dspine", "dflash"):
        assert check_pair(miniature.folder("target"), miniature.folder(name), torch.float32).problems == []


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(miniature.folder("dspine"), tmp_path / "dspine")
    tensors = load_file(folder / "model.safetensors")
    del tensors["injection.message.weight"]
    save_file(tensors, folder / "model.safetensors")
    report = check_pair(miniature.folder("target"), folder, torch.float32)
    assert len(report.problems) == 1
    assert "injection.message.weight" in report.problems[0]


def test_a_drafter_of_another_target_is_a_problem_that_names_the_figures(tmp_path: Path) -> None:
    folder = shutil.copytree(miniature.folder("dspine"), tmp_path / "dspine")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 3072', '"vocab_size": 4096'))
    problems = check_pair(miniature.folder("target"), folder, torch.float32).problems
    assert any("vocab_size is 4096 in the drafter and 3072 in the target" in problem for problem in problems)


def test_a_folder_without_a_model_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    report = check_pair(tmp_path, None, torch.float32)
    assert report.plan is None
    assert "config.json" in report.problems[0]
