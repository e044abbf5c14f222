"""The transition cache: scores of every pair of neighbouring candidates, and the walk through them."""

from dspine_kernels.transition_cache.reference import Walk, scores, walk

__all__ = ["Walk", "scores", "walk"]
