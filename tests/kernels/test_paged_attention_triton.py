from __future__ import annotations

import pytest
import torch

from dspine_kernels.paged_attention import RaggedPlan, ragged, reference, tiles, triton
from tests.kernels.paged_cases import PAGE, PagedCase

CPU = torch.device("cpu")


def attend_in_triton(case: PagedCase, *, num_splits: int, padding: int = 0) -> torch.Tensor:
    """The kernel's output over NaN, with requests of no rows behind the last."""
    plan = ragged.plan(case.pages, case.lengths, case.contexts, page_tokens=PAGE, device=CPU)
    if padding:
        row_starts = torch.cat((plan.row_starts, plan.row_starts[-1:].expand(padding)))
        junk = torch.full((padding, plan.page_table.shape[1]), 10**6, dtype=torch.int32)
        plan = RaggedPlan(
            torch.cat((plan.page_table, junk)),
            row_starts,
            torch.cat((plan.first_positions, torch.full((padding,), 77, dtype=torch.int32))),
            plan.max_width,
        )
    out = torch.full_like(case.query, float("nan"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "splits_for", lambda *_: num_splits)
        triton.attend(case.query, case.key_pages, case.value_pages, plan, case.scale, out)
    return out


def attend_in_torch(case: PagedCase) -> torch.Tensor:
    plan = reference.plan(case.pages, case.lengths, case.contexts, page_tokens=PAGE, device=CPU)
    query = case.query[: sum(case.lengths)]
    return reference.attend(query, case.key_pages, case.value_pages, plan, case.scale)


@pytest.mark.parametrize(
    ("lengths", "contexts", "heads", "head_dim", "num_splits"),
    [
        ([3, 1, 16], [0, 100, 37], (6, 2), 16, 1),
        ([1, 2], [64, 0], (3, 1), 64, 3),
        ([70], [20], (2, 1), 32, 1),
    ],
)
def test_ragged_requests_equal_the_reference(
    lengths: list[int], contexts: list[int], heads: tuple[int, int], head_dim: int, num_splits: int
) -> None:
    case = PagedCase(lengths, contexts, heads, head_dim)
    out = attend_in_triton(case, num_splits=num_splits)
    torch.testing.assert_close(out, attend_in_torch(case), atol=2e-6, rtol=2e-6)


def test_half_precision_is_as_near_as_its_digits() -> None:
    case = PagedCase([2], [70], (2, 1), 16, dtype=torch.float16)
    torch.testing.assert_close(
        attend_in_triton(case, num_splits=2), attend_in_torch(case), atol=2e-3, rtol=2e-3
    )


@pytest.mark.parametrize("num_splits", [1, 2])
def test_requests_of_no_rows_do_nothing_and_rows_of_no_request_stay_as_they_are(num_splits: int) -> None:
    case = PagedCase([2, 1], [5, 66], (2, 1), 16, extra_rows=2)
    out = attend_in_triton(case, num_splits=num_splits, padding=2)
    torch.testing.assert_close(out[:3], attend_in_torch(case), atol=2e-6, rtol=2e-6)
    assert out[3:].isnan().all()


def test_rows_may_be_strided() -> None:
    case = PagedCase([2], [9], (2, 1), 16)
    wanted = attend_in_torch(case)
    wide = torch.full((2, 2, 32), float("nan"))
    wide[..., :16] = case.query
    case.query = wide[..., :16]
    torch.testing.assert_close(attend_in_triton(case, num_splits=1), wanted, atol=2e-6, rtol=2e-6)


def test_one_long_request_is_split_and_many_are_not() -> None:
    assert tiles.splits_for(num_programs=4, max_keys=32768) == tiles.MAX_SPLITS
    assert tiles.splits_for(num_programs=4, max_keys=100) == 1
    assert tiles.splits_for(num_programs=1024, max_keys=32768) == 1
