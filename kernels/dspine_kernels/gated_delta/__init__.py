"""Gated DeltaNet: causal convolution, decay and delta rule over raw projected inputs, in chunk form."""

from dspine_kernels.gated_delta.reference import prefill, verify

__all__ = ["prefill", "verify"]
