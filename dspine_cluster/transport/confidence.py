"""Confidences as they travel: by the bins that verifiers tell them apart by."""

from __future__ import annotations

import numpy as np

from dspine_cluster.core.survival import CONFIDENCE_EDGES
from dspine_cluster.transport.columns import Float32Array, Int8Array

_EDGES = np.array(CONFIDENCE_EDGES)


def bins_of(confidences: Float32Array) -> Int8Array:
    """Which of the bins of `core.survival` each belongs to, same shape."""
    return _EDGES.searchsorted(confidences, "right").astype(np.int8)
