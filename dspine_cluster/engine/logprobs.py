"""Log-probabilities of chosen tokens, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.sampling import MAX_ROWS
from dspine_cluster.types import Logprobs


@in_inference_mode
def token_logprobs(
    logits_of: Callable[[int, int], Tensor],
    token_ids: Sequence[int],
    num_top: int,
    *,
    max_rows: int = MAX_ROWS,
) -> Logprobs:
    """Log-softmax of raw logits, of the token that each row chose and of its `num_top` most likely ones.

    `logits_of(start, end)` gives the target's logits [end - start, vocab_size] of the rows start .. end - 1, of
    which it is asked for at most `max_rows`.
    """
    chosen: list[float] = []
    top_ids: list[list[int]] = []
    top: list[list[float]] = []
    for start in range(0, len(token_ids), max_rows):
        ids = token_ids[start : start + max_rows]
        logprobs = logits_of(start, start + len(ids)).float().log_softmax(-1)  # [num_rows, vocab_size]
        index = torch.tensor(ids, device=logprobs.device)[:, None]
        chosen += logprobs.gather(1, index)[:, 0].tolist()
        best = logprobs.topk(num_top, dim=-1)
        top_ids += best.indices.tolist()
        top += best.values.tolist()
    return Logprobs(tuple(chosen), tuple(map(tuple, top_ids)), tuple(map(tuple, top)))
