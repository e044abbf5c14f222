from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dspine_cluster import miniature
from dspine_cluster.bench.gpu_models import pair_config
from dspine_cluster.check import MemoryPlan, PairReport, check_pair, plan_memory
from dspine_cluster.check_report import print_report
from dspine_cluster.models.sharding import shard_config

PAIR_27B = pair_config("27b")


@pytest.fixture(scope="module")
def plan() -> MemoryPlan:
    return plan_memory(PAIR_27B.target, PAIR_27B.drafter, torch.bfloat16)


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


def test_the_report_says_what_a_block_in_flight_takes(plan: MemoryPlan) -> None:
    console = Console(file=io.StringIO(), width=120)
    report = PairReport(target=PAIR_27B.target, plan=plan)
    print_report(console, report, gpu_bytes=141 * 10**9, context_tokens=32768)
    assert isinstance(console.file, io.StringIO)
    assert re.search(r"a block in flight beyond that state +14\.88 MB *\n", console.file.getvalue())


def test_two_ranks_halve_the_layers_and_the_caches_but_not_embedding_head_and_features(
    plan: MemoryPlan,
) -> None:
    half = plan_memory(shard_config(PAIR_27B.target, 2), PAIR_27B.drafter, torch.bfloat16)
    whole = plan.shared_weights  # embedding and head
    assert half.target_weights - whole == pytest.approx((plan.target_weights - whole) / 2, rel=1e-3)
    assert half.kv_per_token == plan.kv_per_token / 2
    assert half.state_per_request == plan.state_per_request / 2
    assert half.features_per_token == plan.features_per_token


def test_ranks_that_do_not_divide_the_target_are_a_problem() -> None:
    report = check_pair(miniature.folder("target"), None, torch.float32, num_ranks=4)
    assert any("tensor_parallel 4 does not divide" in problem for problem in report.problems)


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
