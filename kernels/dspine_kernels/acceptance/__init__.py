"""Which proposals of a block become output, and the token after them."""

from __future__ import annotations

from torch import Tensor

from dspine_kernels.acceptance import reference
from dspine_kernels.acceptance.reference import Accepted, BlockRows
from dspine_kernels.dispatch import uses_triton

__all__ = ["Accepted", "BlockRows", "accept_sampled", "argmax"]


def argmax(logits: Tensor) -> Tensor:
    """See `reference.argmax`."""
    if uses_triton(logits):
        from dspine_kernels.acceptance import triton_argmax

        return triton_argmax.argmax(logits)
    return reference.argmax(logits)


def accept_sampled(
    probs: Tensor, blocks: BlockRows, draft_candidates: Tensor, draft_probs: Tensor, uniforms: Tensor
) -> Accepted:
    """See `reference.accept_sampled`."""
    if uses_triton(probs):
        from dspine_kernels.acceptance import triton

        return triton.accept_sampled(probs, blocks, draft_candidates, draft_probs, uniforms)
    return reference.accept_sampled(probs, blocks, draft_candidates, draft_probs, uniforms)
