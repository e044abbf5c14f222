from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspine_cluster.engine.logprobs import token_logprobs


@given(num_rows=st.integers(0, 9), num_top=st.integers(0, 5), max_rows=st.integers(1, 4))
def test_they_are_those_of_the_softmax_whatever_the_pieces(
    num_rows: int, num_top: int, max_rows: int
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    logits = 5 * torch.randn(num_rows, 7, generator=generator)
    token_ids = torch.randint(7, (num_rows,), generator=generator).tolist()
    asked: list[int] = []

    def logits_of(start: int, end: int) -> Tensor:
        asked.append(end - start)
        return logits[start:end]

    result = token_logprobs(logits_of, token_ids, num_top, max_rows=max_rows)
    assert max(asked, default=0) <= max_rows
    expected = torch.log(torch.softmax(logits.double(), -1))
    for row, token_id in enumerate(token_ids):
        assert result.chosen[row] == pytest.approx(float(expected[row, token_id]), abs=1e-5)
        best = expected[row].sort(descending=True).indices[:num_top].tolist()
        assert list(result.top_ids[row]) == best
        assert result.top[row] == pytest.approx(expected[row, best].tolist(), abs=1e-5)
