"""What a pass through the target takes, learnt from those that ran."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.online_fit import OnlineFit

_KNOTS = (0, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
"""Token counts at which the time for one token more may change."""
_KNOT_SCALES = (8, *_KNOTS[1:])
_NEXT_KNOTS = (*_KNOTS[1:], _KNOTS[-1])
_FEW_TOKENS = 32
_REQUEST_TOKENS = 1.0
_KV_TOKENS = 1 / 2000
_PREFILL_TOKENS = 0.25
"""What a request, a cached token and a prompt token may cost beside the tokens that pass, in tokens: priors."""
_BLOCK_SHARE = 0.25
"""What the first proposal may cost, in relation to a pass, because blocks are computed in another form: a prior."""
_FEATURES_SHARE, _FEATURE_TOKENS = 0.1, 0.25
"""What features may cost in relation to a pass, and each of them in tokens: priors."""
_MIN_SHARE = 0.1
"""No prediction is below this share of the shortest time that was seen."""
_FIRST_PASSES, _FIRST_OF_KIND = 128, 16
"""These, and so many passes of a kind, are all learnt from."""
_SURPRISE = 4.0
"""Two standard deviations: the next pass is learnt from, too."""
_RESTS = (3, 4, 5)
"""Passes from one of a kind that is learnt from to the next. Which comes when is not periodic, so that it is never in
step with what is: halves that take turns, trials."""
_GOLDEN_RATIO = 0.6180339887498949


@dataclass(slots=True)
class _Kind:
    """Passes that tell of the same coefficients."""

    num_learnt: int = 0
    due_pass: int = 0
    """The first that is learnt from again."""


class PassCost:
    """t(num_requests, num_tokens, num_prefill_tokens, num_kv_tokens), linear in all but the tokens, and in whether any
    of them are proposals, and whether features are computed for them.

    Beyond what was seen the last slope goes on, so that a length never tried looks no worse than its neighbours.

    What is known of a kind of pass is seldom corrected: of many like each other few are learnt from. Which these are
    does not depend on the times that they took, only on those of earlier ones.
    """

    def __init__(self, buckets: Sequence[int] = ()) -> None:
        """`buckets` are the sizes, ascending, to which the engine pads the tokens of a pass; larger ones are not
        padded."""
        self._buckets = tuple(buckets)
        self._fit: OnlineFit | None = None
        self._shortest_s = 0.0
        self._shape = CostShape((0,), (0.0,), (0.0,))
        self._curves: dict[tuple[int, int, int, bool], CostCurve] = {}
        """Those that were asked for since the last pass."""
        self._kinds: defaultdict[tuple[int, bool, bool, bool], _Kind] = defaultdict(_Kind)
        self._num_passes = self._learnt_pass = 0
        self._phase = 0.0

    @property
    def is_known(self) -> bool:
        """Whether a pass has been noted yet."""
        return self._fit is not None

    def note(
        self,
        *,
        num_requests: int,
        num_tokens: int,
        num_prefill_tokens: int,
        num_kv_tokens: int,
        taken_s: float,
        with_features: bool = False,
    ) -> None:
        """A pass took `taken_s`; `num_tokens` includes those of its prompt chunks."""
        self._shortest_s = min(self._shortest_s or taken_s, taken_s)
        self._curves.clear()
        self._num_passes += 1
        has_blocks = num_tokens > num_requests + num_prefill_tokens
        buckets = self._buckets
        if buckets and num_tokens <= buckets[-1]:
            num_tokens = buckets[bisect_left(buckets, num_tokens)]
        kind = self._kinds[bisect_left(_KNOTS, num_tokens), has_blocks, num_prefill_tokens > 0, with_features]
        if self._num_passes < kind.due_pass:
            return
        features = with_features, with_features * (num_requests + num_prefill_tokens)
        others = 1.0, num_requests, num_kv_tokens, num_prefill_tokens, has_blocks, *features
        surprise = self._learn(others, num_tokens, taken_s)
        kind.num_learnt += 1
        rest = 1
        is_known = self._num_passes > _FIRST_PASSES and kind.num_learnt >= _FIRST_OF_KIND
        if is_known and surprise < _SURPRISE:
            self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
            rest = _RESTS[int(self._phase * len(_RESTS))]
        kind.due_pass = self._num_passes + rest

    def _learn(self, others: Sequence[float], num_tokens: int, taken_s: float) -> float:
        """How surprising the time was."""
        if self._fit is None:
            token_s = taken_s / max(num_tokens, _FEW_TOKENS)
            others_s = [token_s * tokens for tokens in (_REQUEST_TOKENS, _KV_TOKENS, _PREFILL_TOKENS)]
            ramps_s = [token_s / 2 * scale for scale in _KNOT_SCALES]
            features_s = _FEATURES_SHARE * taken_s, _FEATURE_TOKENS * token_s
            self._fit = OnlineFit([taken_s, *others_s, _BLOCK_SHARE * taken_s, *features_s, *ramps_s])
        ramps = [max(0, num_tokens - knot) / scale for knot, scale in zip(_KNOTS, _KNOT_SCALES, strict=True)]
        num_steps, self._learnt_pass = self._num_passes - self._learnt_pass, self._num_passes
        surprise = self._fit.note([*others, *ramps], taken_s, num_steps=num_steps)
        value = slope = 0.0
        values_s, slopes_s = [], []
        ramps = self._fit.coefficients[-len(_KNOTS) :]
        for knot, scale, ramp_s, until in zip(_KNOTS, _KNOT_SCALES, ramps, _NEXT_KNOTS, strict=True):
            slope += ramp_s / scale
            values_s.append(value)
            slopes_s.append(max(0.0, slope))
            value += slopes_s[-1] * (until - knot)
        self._shape = CostShape(_KNOTS, values_s, slopes_s, self._buckets)
        return surprise

    def curve(
        self, *, num_requests: int, num_prefill_tokens: int, num_kv_tokens: int, with_features: bool = False
    ) -> CostCurve:
        """The time over the number of tokens, the rest given. A pass must have been noted."""
        assert self._fit is not None
        key = num_requests, num_prefill_tokens, num_kv_tokens, with_features
        found = self._curves.get(key)
        if found is None:
            found = self._curves[key] = self._curve(self._fit, *key)
        return found

    def _curve(
        self,
        fit: OnlineFit,
        num_requests: int,
        num_prefill_tokens: int,
        num_kv_tokens: int,
        with_features: bool,
    ) -> CostCurve:
        constant_s, request_s, kv_s, prefill_s, block_s, features_s, feature_s = fit.coefficients[
            : -len(_KNOTS)
        ]
        if with_features:
            constant_s += max(0.0, features_s + feature_s * (num_requests + num_prefill_tokens))
        return CostCurve(
            self._shape,
            _MIN_SHARE * self._shortest_s,
            plain_tokens=num_requests + num_prefill_tokens,
            block_s=max(0.0, block_s),
            base_s=constant_s
            + request_s * num_requests
            + kv_s * num_kv_tokens
            + prefill_s * num_prefill_tokens,
        )

    def prefill_s(self, num_requests: int, num_prefill_tokens: int, with_features: bool = False) -> float:
        """What so many prompt tokens add to a pass of requests that decode plainly."""
        with_prompts, without = [
            self.curve(
                num_requests=num_requests,
                num_prefill_tokens=num_prompt,
                num_kv_tokens=0,
                with_features=with_features,
            )
            for num_prompt in (num_prefill_tokens, 0)
        ]
        return with_prompts.seconds(num_requests + num_prefill_tokens) - without.seconds(num_requests)
