"""Attention of draft blocks over their paged context and themselves."""

from dspine_kernels.draft_attention.reference import BlockPlan, attend, plan

__all__ = ["BlockPlan", "attend", "plan"]
