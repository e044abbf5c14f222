from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor

from dspine_kernels import paged_attention
from dspine_kernels.paged_attention import flash, ragged, reference
from tests.kernels.paged_cases import PAGE, PagedCase

CPU = torch.device("cpu")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
) -> Tensor:
    """What flash-attn says that it does: the last query of a sequence sees all of its keys, each before it one less."""
    assert causal
    assert max_seqlen_q == cu_seqlens_q.diff().max()
    assert max_seqlen_k == cu_seqlens_k.diff().max()
    parts = (
        torch.split(x, starts.diff().tolist())
        for x, starts in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))
    )
    outs = []
    for query, key, value in zip(*parts, strict=True):
        num_groups = query.shape[1] // key.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(num_groups, 1)).float()
        hidden = torch.ones_like(scores[0]).triu(1 + len(key) - len(query)).bool()
        weights = (scores * softmax_scale).masked_fill(hidden, -torch.inf).softmax(-1).to(value.dtype)
        outs.append(torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(num_groups, 1)))
    return torch.cat(outs)


def test_a_wide_chunk_in_half_precision_goes_to_flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("flash_attn")
    monkeypatch.setattr(module, "flash_attn_varlen_func", flash_attn_varlen_func, raising=False)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(flash, "is_installed", lambda: True)
    case = PagedCase([flash.MIN_WIDTH, 3], [20, 33], (4, 2), 16, dtype=torch.bfloat16)
    requests = (case.pages, case.lengths, case.contexts)
    plan = ragged.plan(*requests, page_tokens=PAGE, device=CPU)
    got = paged_attention.attend(case.query, case.key_pages, case.value_pages, plan, case.scale)
    wanted = reference.attend(
        case.query,
        case.key_pages,
        case.value_pages,
        reference.plan(*requests, page_tokens=PAGE, device=CPU),
        case.scale,
    )
    torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)


def test_narrow_passes_gather_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "is_installed", lambda: True)
    assert ragged.plan([[0]], [16], [0], page_tokens=PAGE, device=CPU).gathered is None
