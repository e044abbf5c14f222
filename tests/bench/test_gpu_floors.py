"""The floors are those that published sizes and measured ceilings give."""

from __future__ import annotations

import pytest
import torch

from dspine_cluster.bench import gpu_floors as floors
from dspine_cluster.bench.gpu_floors import Ceilings, PassShape, Work
from dspine_cluster.bench.gpu_models import pair_config
from dspine_cluster.models.architecture import make_target

PAIRS = {name: pair_config(name) for name in ("27b", "8b")}
H200 = Ceilings(bytes_per_s=4.3e12, operations_per_s=790e12)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pass_and_the_head_read_every_matrix_of_the_target_once(name: str) -> None:
    config = PAIRS[name].target
    with torch.device("meta"):
        model = make_target(config)
    matrices = sum(
        parameter.numel()
        for parameter_name, parameter in model.named_parameters()
        if parameter.dim() == 2 and "embed" not in parameter_name
    )
    empty = PassShape(num_requests=0, width=1, context_tokens=0)
    read = floors.target_pass(config, empty) + floors.head(config, 0)
    assert read.num_bytes == 2 * matrices


def test_the_27b_target_is_read_in_the_time_that_the_design_names() -> None:
    config = PAIRS["27b"].target
    embedding = 2 * config.vocab_size * config.hidden_size
    empty = floors.target_pass(config, PassShape(0, 1, 0)) + floors.head(config, 0)
    assert empty.num_bytes + embedding == pytest.approx(53.8e9, rel=0.002)
    assert H200.floor_ms(empty + Work(embedding)) == pytest.approx(12.5, rel=0.01)


def test_128_verified_tokens_of_the_27b_target_are_9_ms_of_arithmetic() -> None:
    config = PAIRS["27b"].target
    work = floors.target_pass(config, PassShape(8, 16, 0)) + floors.head(config, 128)
    assert 1e3 * work.num_operations / H200.operations_per_s == pytest.approx(9, rel=0.08)


def test_a_27b_draft_reads_at_least_5_8_gb() -> None:
    work = floors.draft(PAIRS["27b"].drafter, num_blocks=1, context_tokens=0)
    assert work.num_bytes == pytest.approx(5.8e9, rel=0.01)
    assert H200.floor_ms(work) == pytest.approx(1.4, rel=0.05)
    assert H200.limit(work) == "bytes"


def test_a_request_adds_its_state_twice_and_its_cached_keys_and_values() -> None:
    config = PAIRS["27b"].target
    alone, cached = (floors.target_pass(config, PassShape(1, 1, context)) for context in (0, 1000))
    assert cached.num_bytes - alone.num_bytes == 1000 * 64 * 1024
    nothing = floors.target_pass(config, PassShape(0, 1, 0))
    assert alone.num_bytes - nothing.num_bytes == pytest.approx(2 * 154e6, rel=0.01)


def test_replaying_accepted_proposals_reads_their_inputs_alone() -> None:
    config = PAIRS["27b"].target
    few, many = (floors.target_pass(config, PassShape(4, 16, 0, replayed)) for replayed in (0, 15))
    assert many.num_bytes - few.num_bytes == pytest.approx(4 * 14.9e6, rel=0.01)


def test_a_window_bounds_what_a_draft_reads_of_its_context() -> None:
    windowed, full = PAIRS["27b"].drafter, PAIRS["8b"].drafter
    for config, grows in ((windowed, False), (full, True)):
        near, far = (floors.draft(config, 1, context).num_bytes for context in (8191, 50_000))
        assert (far > near) is grows


def test_the_parts_of_a_draft_are_less_than_the_whole() -> None:
    for pair in PAIRS.values():
        parts = floors.injection(pair.drafter, 8) + floors.transition(pair.drafter, 8)
        whole = floors.draft(pair.drafter, 8, 1024)
        assert parts.num_bytes < whole.num_bytes
        assert parts.num_operations < whole.num_operations


def test_injection_and_ingest_of_the_27b_drafter_take_little_of_a_round() -> None:
    drafter = PAIRS["27b"].drafter
    assert H200.floor_ms(floors.injection(drafter, 1)) < 0.05
    assert floors.ingest(drafter, 0).num_bytes == 5 * 2 * 5120 * 1024 * 2


def test_the_larger_of_both_times_is_the_floor() -> None:
    ceilings = Ceilings(bytes_per_s=10.0, operations_per_s=100.0)
    assert ceilings.floor_ms(Work(10.0, 200.0)) == 2000.0
    assert ceilings.limit(Work(10.0, 200.0)) == "operations"
    assert ceilings.floor_ms(Work(30.0, 200.0)) == 3000.0
    assert ceilings.limit(Work(30.0, 200.0)) == "bytes"
    assert Work(1.0, 2.0) + Work(3.0, 4.0).times(2) == Work(7.0, 10.0)
