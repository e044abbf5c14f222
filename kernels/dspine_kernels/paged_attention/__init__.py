"""Causal attention of ragged queries over paged keys and values."""

from dspine_kernels.paged_attention.reference import Plan, attend, plan, write

__all__ = ["Plan", "attend", "plan", "write"]
