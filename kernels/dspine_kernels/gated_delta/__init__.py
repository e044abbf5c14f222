"""Gated DeltaNet: causal convolution, decay and delta rule over raw projected inputs.

`prefill`, `verify` and `decode` take states and give states. `prefill_slots` and `verify_slots` move on the states
in a pool's slots, where an engine keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspine_kernels.dispatch import uses_triton
from dspine_kernels.gated_delta import blocks
from dspine_kernels.gated_delta import slots as _slots
from dspine_kernels.gated_delta.blocks import BlockPlan
from dspine_kernels.gated_delta.layer import Inputs, States, Weights
from dspine_kernels.gated_delta.reference import decode, prefill, verify
from dspine_kernels.gated_delta.slots import SlotPlan, SplitPlan

__all__ = [
    "BlockPlan",
    "Inputs",
    "Plan",
    "SlotPlan",
    "SplitPlan",
    "States",
    "Weights",
    "decode",
    "plan",
    "prefill",
    "prefill_slots",
    "verify",
    "verify_slots",
]


Plan = SlotPlan | SplitPlan | BlockPlan


def plan(
    slots: Sequence[int],
    lengths: Sequence[int],
    num_pending: Sequence[int] | None = None,
    *,
    first_row: int = 0,
    device: torch.device,
) -> Plan:
    """Plan the rows of a pass that belong to blocks, or those of prefill chunks, for the form that runs on `device`.

    Args:
        slots: each request's slot in the pools, all different.
        lengths: tokens of each request, one or more.
        num_pending: accepted proposals of each request that its state has not seen; None for prefill chunks.
        first_row: where the first request's tokens begin among the pass's packed rows.
        device: of the pools.
    """
    if num_pending is None:
        return SlotPlan(slots, lengths, first_row=first_row, device=device)
    make = blocks.plan if uses_triton(torch.empty(0, device=device)) else _slots.plan_blocks
    return make(slots, lengths, num_pending, first_row=first_row, device=device)


def verify_slots(inputs: Inputs, weights: Weights, states: States, plan: Plan) -> Tensor:
    """`verify` over pools: replay what was accepted, run the blocks and move the states to their anchors, in place.

    The blocks' proposals become pending. A pass of one token a request with nothing pending is plain decoding.

    Args:
        inputs: `[num_rows, ...]`, the packed rows of the whole pass.
        weights: the layer's.
        states: the layer's pools; slots that the plan does not name are left alone.
        plan: with `num_pending`.

    Returns:
        Outputs of the plan's rows, `[num_rows of the plan, Hv, Dv]` in the dtype of `mixed_qkv`.
    """
    if isinstance(plan, BlockPlan):
        from dspine_kernels.gated_delta import triton

        return triton.verify(inputs, weights, states, plan)
    return _slots.verify(inputs, weights, states, plan)


def prefill_slots(inputs: Inputs, weights: Weights, states: States, plan: Plan) -> Tensor:
    """`prefill` over pools, in place; arguments and result as in `verify_slots`, but nothing is pending."""
    assert isinstance(plan, SlotPlan)
    return _slots.prefill(inputs, weights, states, plan)
