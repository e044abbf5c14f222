"""Ways to run a target that must all give the logits of one whole pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dspine_cluster.models.target import TargetModel
from tests.models.dense_cache import DenseCache

Run = Callable[[TargetModel, list[Tensor]], list[Tensor]]


def whole_prefill(model: TargetModel, requests: list[Tensor]) -> list[Tensor]:
    return _cache(model, requests).run(model, requests, is_block=False)


def chunked_prefill(model: TargetModel, requests: list[Tensor]) -> list[Tensor]:
    """Chunks of 19, 64, 19, ... tokens; a request that has ended sends one token less than the rest, down to none."""
    cache = _cache(model, requests)
    logits: list[list[Tensor]] = [[] for _ in requests]
    done = 0
    for size in (19, 64) * 8:
        chunks = [tokens[done : done + size] for tokens in requests]
        if any(len(chunk) for chunk in chunks):
            for row, part in zip(logits, cache.run(model, chunks, is_block=False), strict=True):
                row.append(part)
        done += size
    return [torch.cat(row) for row in logits]


def decode(model: TargetModel, requests: list[Tensor]) -> list[Tensor]:
    """All but the last 12 tokens prefilled, the rest one by one."""
    return _in_blocks(model, requests, [(1, 1)] * 12)


def verify(model: TargetModel, requests: list[Tensor]) -> list[Tensor]:
    """Blocks of 16 of which 1, 16, 5, ... tokens are kept; the rest of each block is wrong proposals."""
    return _in_blocks(model, requests, [(16, 1), (16, 16), (16, 5), (1, 1), (16, 9)])


def _in_blocks(model: TargetModel, requests: list[Tensor], blocks: list[tuple[int, int]]) -> list[Tensor]:
    cache = _cache(model, requests)
    num_decoded = sum(kept for _, kept in blocks)
    logits = [[part] for part in cache.run(model, [r[:-num_decoded] for r in requests], is_block=False)]
    starts = [len(r) - num_decoded for r in requests]
    for width, kept in blocks:
        wrong = torch.full((width - kept,), 7)
        block = [
            torch.cat((r[start : start + kept], wrong)) for r, start in zip(requests, starts, strict=True)
        ]
        for row, part in zip(logits, cache.run(model, block, is_block=True), strict=True):
            row.append(part[:kept])
        cache.commit(torch.full((len(requests),), kept))
        starts = [start + kept for start in starts]
    return [torch.cat(row) for row in logits]


def _cache(model: TargetModel, requests: list[Tensor]) -> DenseCache:
    return DenseCache(model.config, len(requests), max(map(len, requests)) + 16)


RUNS: dict[str, Run] = {
    "whole prefill": whole_prefill,
    "chunked prefill": chunked_prefill,
    "decode": decode,
    "verify": verify,
}
