"""Gated DeltaNet: causal convolution, decay and delta rule over raw projected inputs, in chunk form."""

from dspine_kernels.gated_delta.reference import decode, prefill, verify

__all__ = ["decode", "prefill", "verify"]
