"""Quantiles, and intervals for ratios of sums by resampling prompts."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
Float64Array = npt.NDArray[np.float64]


def pooled_interval(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0
) -> tuple[float, float]:
    """The 95 % bootstrap interval of sum(numerators) / sum(denominators); entry i of both belongs to prompt i."""
    sums = _resample(np.array([numerators, denominators], dtype=np.float64), seed)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(
    first: tuple[Sequence[float], Sequence[float]],
    second: tuple[Sequence[float], Sequence[float]],
    seed: int = 0,
) -> tuple[float, float]:
    """The same for the ratio of two pooled ratios over the same prompts, which are resampled together."""
    sums = _resample(np.array([*first, *second], dtype=np.float64), seed)
    low, high = np.percentile((sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3]), [2.5, 97.5])
    return float(low), float(high)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the sorted `values` does not exceed."""
    return values[ceil(share * len(values)) - 1]


def _resample(rows: Float64Array, seed: int) -> Float64Array:
    """Sums of each row over resampled columns: [NUM_RESAMPLES, num_rows]."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, rows.shape[1], (NUM_RESAMPLES, rows.shape[1]))
    sums: Float64Array = rows[:, picks].sum(-1).T
    return sums
