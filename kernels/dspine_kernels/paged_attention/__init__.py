"""Causal attention of ragged queries over paged keys and values."""

from dspine_kernels.paged_attention.reference import attend, write

__all__ = ["attend", "write"]
