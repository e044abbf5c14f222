"""Linear regression that learns from one observation after the other and follows what drifts."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

# All in relation to the observed values.
_DRIFT = 2e-5
"""Share of the prior variance that each coefficient may wander in a step, from one observation to the next unless some
are left out."""
_FIRST_NOISE = 0.1
"""Standard deviation of an observation, before it is learnt."""
_MIN_NOISE = 0.02
_NOISE_WEIGHT = 0.02
"""Of an observation in the learnt noise."""
_OUTLIER_DEVIATIONS = 3.0
"""A residual counts as no more than this many standard deviations."""


class OnlineFit:
    """A Kalman filter over coefficients that wander at random: recursive least squares of relative errors.

    What the observations do not touch keeps its value, however long ago it was learnt.
    """

    def __init__(self, prior_stds: Sequence[float]) -> None:
        """Coefficients start at 0 with these standard deviations, in units of the observed values."""
        size = len(prior_stds)
        self.coefficients = [0.0] * size
        self._drifts = [_DRIFT * std * std for std in prior_stds]
        self._covariance = [[std * std * (i == j) for j in range(size)] for i, std in enumerate(prior_stds)]
        self._noise = _FIRST_NOISE**2

    def predict(self, features: Sequence[float]) -> float:
        return float(sum(map(mul, self.coefficients, features)))

    def note(self, features: Sequence[float], value: float, *, num_steps: int = 1) -> float:
        """Take in a positive `value` that was observed at `features`; coefficients have wandered for `num_steps` since
        the observation before. Returns its squared error over that which was to be expected, 1 on average."""
        assert value > 0.0
        error = 1.0 - self.predict(features) / value
        row = [x / value for x in features]
        spread = [sum(map(mul, line, row)) for line in self._covariance]
        variance = sum(map(mul, row, spread)) + self._noise
        limit = _OUTLIER_DEVIATIONS * variance**0.5
        surprise = min(error * error / variance, _OUTLIER_DEVIATIONS**2)
        step = max(-limit, min(error, limit)) / variance
        self.coefficients = [c + s * step for c, s in zip(self.coefficients, spread, strict=True)]
        for i, drift in enumerate(self._drifts):
            if spread[i]:  # what the observation says nothing of stays as it is
                share = spread[i] / variance
                line = self._covariance[i]
                self._covariance[i] = [p - share * s for p, s in zip(line, spread, strict=True)]
            self._covariance[i][i] += drift * num_steps
        grown = self._noise * (1.0 + _NOISE_WEIGHT * (surprise - 1.0))
        self._noise = max(grown, _MIN_NOISE**2)
        return float(surprise)
