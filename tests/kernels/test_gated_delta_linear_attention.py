from __future__ import annotations

import functools
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

from dspine_kernels.gated_delta import linear_attention, reference
from tests.kernels.gated_delta_cases import error, make_layer, span


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    initial_state: Tensor | None,
    output_final_state: bool,
) -> tuple[Tensor, Tensor]:
    """flash-linear-attention's function, as transformers computes it without that package."""
    out, state = hf.torch_chunk_gated_delta_rule(
        q * scale * q.shape[-1] ** 0.5,
        k,
        v,
        g=g,
        beta=beta,
        initial_state=initial_state,
        output_final_state=output_final_state,
    )
    return out, state


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fla.ops.gated_delta_rule")
    monkeypatch.setattr(module, "chunk_gated_delta_rule", chunk_gated_delta_rule, raising=False)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_prefill_by_the_package_equals_the_chunk_form() -> None:
    layer, raw = make_layer(70, seed=1)
    form = functools.partial(linear_attention.chunked, dtype=torch.float32)
    _, *past = reference.prefill(span(raw, 0, 3), layer.weights)
    rest = span(raw, 3, 70)
    got = reference.prefill(rest, layer.weights, state=past[0], conv_state=past[1], chunk_form=form)
    wanted = reference.prefill(rest, layer.weights, state=past[0], conv_state=past[1])
    assert error(got[0], wanted[0]) < 2e-5
    assert error(got[1], wanted[1]) < 2e-5


def test_it_serves_no_activations_on_cpus() -> None:
    assert not linear_attention.serves(torch.zeros(1, dtype=torch.bfloat16))
