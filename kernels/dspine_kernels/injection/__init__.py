"""Adjacent injection: each proposal's state receives a gated message from its predecessor."""

from dspine_kernels.injection.reference import InjectionWeights, inject, receive, transfer_features

__all__ = ["InjectionWeights", "inject", "receive", "transfer_features"]
