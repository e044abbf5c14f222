"""Requests over shuffled pages whose unused slots hold NaN."""

from __future__ import annotations

import torch
from torch import Tensor

PAGE = 16


class PagedCase:
    """Random queries, keys and values of a few requests; `extra_rows` of the queries belong to none."""

    def __init__(
        self,
        lengths: list[int],
        contexts: list[int],
        heads: tuple[int, int],
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        extra_rows: int = 0,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.lengths, self.contexts, self.scale = lengths, contexts, head_dim**-0.5
        num_heads, num_kv_heads = heads
        totals = [length + context for length, context in zip(lengths, contexts, strict=True)]
        counts = [-(-total // PAGE) for total in totals]
        order = torch.randperm(sum(counts) + 1, generator=random).tolist()
        self.pages = [[order.pop() for _ in range(count)] for count in counts]
        shape = (sum(counts) + 1, PAGE, num_kv_heads, head_dim)
        self.key_pages, self.value_pages = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        for own, total in zip(self.pages, totals, strict=True):
            for pool in (self.key_pages, self.value_pages):
                rows = torch.randn(total, num_kv_heads, head_dim, generator=random).to(dtype)
                for index, page in enumerate(own):
                    part = rows[index * PAGE : (index + 1) * PAGE]
                    pool[page, : len(part)] = part
        num_rows = sum(lengths) + extra_rows
        self.query: Tensor = torch.randn(num_rows, num_heads, head_dim, generator=random).to(dtype)
