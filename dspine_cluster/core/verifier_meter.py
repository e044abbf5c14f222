"""What a verifier tells autoscaling, from what its loop counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from dspine_cluster.core.autoscaling_stats import RoundCurve, VerifierStats
from dspine_cluster.core.capacity_estimate import CapacityEstimate
from dspine_cluster.core.online_fit import OnlineFit
from dspine_cluster.core.sample_window import SampleWindow

_OUTPUT_WEIGHT = 0.05
_FIRST_OUTPUT_TOKENS = 300.0
"""How long answers are before one has ended."""
_FEW_REQUESTS = 8
_FEW_ROUNDS = 16
"""Of single requests. The first ones decode plainly and tell nothing of how a verifier will do."""
_WINDOW_ROUNDS = 96
"""Of single requests, over which acceptance and times of rounds are averaged at least: of fewer, a verifier would seem
to bear twice as much at one moment as at the next."""
_MAX_WINDOWS = 8
"""What is longer ago than so many windows never counts."""
_WAIT_GROWTH = 0.001
_MAX_GAP_S = 4.0
"""What takes longer is no pass, but a machine that stood still: the rest does not count."""


@dataclass(frozen=True, slots=True)
class RoundTotals:
    """Counts since the start."""

    rounds: int
    """Of single requests."""
    committed_tokens: int
    """By rounds."""
    draft_queue_s: float
    """Waited for drafts beyond what these took, summed over requests."""


@dataclass(frozen=True, slots=True)
class PresentLoad:
    """What a verifier holds now."""

    running_requests: int
    running_tokens: float
    """Still to be generated."""
    waiting_tokens: float
    queued_prefill_tokens: int
    page_usage_ratio: float
    prefill_tokens_per_s: float
    """Measured, passes shared with rounds included."""
    has_drafters: bool
    wants_drafts: bool
    """Whether the configuration lets it draft at all."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    totals: RoundTotals
    first_tokens: int
    prefilled_tokens: int
    busy_s: float
    request_s: float


class VerifierMeter:
    """For one thread. Times are seconds of one monotonic clock."""

    def __init__(self, max_requests: int, window_s: float = 5.0) -> None:
        """`max_requests` decode at a time at most. Rates are of the last `window_s`, figures of rounds of longer where
        that had few."""
        self._max_requests = max_requests
        self._window_s = window_s
        self._sizes = (*(2**i for i in range(max_requests.bit_length()) if 2**i < max_requests), max_requests)
        self._samples = SampleWindow(_Sample(0.0, RoundTotals(0, 0, 0.0), 0, 0, 0.0, 0.0))
        self._advanced_at_s: float | None = None
        self._num_decoding = 0
        self._awake_s = self._busy_s = self._request_s = 0.0
        self._first_tokens = self._prefilled_tokens = 0
        self._output_tokens = _FIRST_OUTPUT_TOKENS
        self._has_ended = False
        self._length = 1.0
        self._least_wait_s = inf
        self._fit: OnlineFit | None = None  # of rounds over requests, where costs are not known

    def advance(self, now_s: float, num_decoding: int) -> None:
        """So many requests decode from now on."""
        if self._advanced_at_s is not None:
            elapsed_s = min(now_s - self._advanced_at_s, _MAX_GAP_S)
            self._awake_s += elapsed_s
            if self._num_decoding:
                self._busy_s += elapsed_s
                self._request_s += elapsed_s * self._num_decoding
        self._advanced_at_s, self._num_decoding = now_s, num_decoding

    def note_pass(self, num_prefill_tokens: int, num_first_tokens: int) -> None:
        """A pass has computed so many prompt tokens, with which so many prompts were complete."""
        self._prefilled_tokens += num_prefill_tokens
        self._first_tokens += num_first_tokens

    def note_end(self, num_output_tokens: int) -> None:
        """An answer has ended."""
        weight = _OUTPUT_WEIGHT if self._has_ended else 1.0
        self._output_tokens += weight * (num_output_tokens - self._output_tokens)
        self._has_ended = True

    def expected_left(self, num_output: int, remaining: int) -> float:
        """Tokens that an answer with `num_output` will still get, of `remaining` that it may."""
        return min(float(remaining), max(1.0, self._output_tokens - num_output))

    def stats(
        self,
        now_s: float,
        totals: RoundTotals,
        load: PresentLoad,
        estimate: Callable[[tuple[int, ...]], CapacityEstimate | None],
    ) -> VerifierStats | None:
        """The figures of the last seconds, of a replica without a name; None before there have been some rounds.

        `estimate` tells what batches of some sizes would give; None: measured rounds are taken to grow linearly.
        """
        self.advance(now_s, self._num_decoding)
        now = _Sample(
            self._awake_s, totals, self._first_tokens, self._prefilled_tokens, self._busy_s, self._request_s
        )
        self._samples.add(now)
        self._samples.forget(lambda sample: self._has_left(sample, now))
        recent = self._samples.last(lambda sample: sample.at_s <= now.at_s - self._window_s)
        busy_s = now.busy_s - recent.busy_s
        running = (now.request_s - recent.request_s) / busy_s if busy_s > 0 else float(load.running_requests)
        # Without rounds lately there is no time of a round, but still an acceptance length.
        first = self._samples.first if totals.rounds > recent.totals.rounds else recent
        rounds, busy_s = totals.rounds - first.totals.rounds, now.busy_s - first.busy_s
        round_s = (now.request_s - first.request_s) / rounds if rounds else 0.0
        queue_s = 0.0
        if rounds:
            self._length = max(1.0, (totals.committed_tokens - first.totals.committed_tokens) / rounds)
            queue_s = self._queue_s((totals.draft_queue_s - first.totals.draft_queue_s) / rounds)
            if round_s > 0:
                self._note_round(running, round_s)
        known = estimate((*self._sizes, min(self._max_requests, max(1, round(running)))))
        curve = self._curve(known, load.has_drafters)
        if curve is None or totals.rounds < _FEW_ROUNDS:
            return None
        token_s = known.prefill_token_s if known else 1.0 / max(load.prefill_tokens_per_s, 1.0)
        prefill_s = 0.0
        if busy_s > 0:
            prefill_s = (now.prefilled_tokens - first.prefilled_tokens) * token_s * round_s / busy_s
        elapsed_s = max(1e-3, now.at_s - recent.at_s)
        committed = totals.committed_tokens - recent.totals.committed_tokens
        return VerifierStats(
            replica_id="",
            age_s=0.0,
            curve=curve,
            max_requests=self._max_requests,
            committed_tokens_per_s=(committed + now.first_tokens - recent.first_tokens) / elapsed_s,
            acceptance_length=self._length,
            speculation_gain=_gain(known, load),
            running_requests=running,
            running_tokens=load.running_tokens,
            waiting_tokens=load.waiting_tokens,
            queued_prefill_tokens=float(load.queued_prefill_tokens),
            prefill_tokens_per_s=(now.prefilled_tokens - recent.prefilled_tokens) / elapsed_s,
            prefill_token_s=token_s,
            round_s=round_s,
            prefill_s=min(prefill_s, round_s / 2),
            draft_queue_s=min(queue_s, round_s / 2),
            page_usage_ratio=load.page_usage_ratio,
        )

    def _has_left(self, sample: _Sample, now: _Sample) -> bool:
        """Whether what came after it is enough."""
        is_old = sample.at_s <= now.at_s - self._window_s
        has_many = now.totals.rounds - sample.totals.rounds >= _WINDOW_ROUNDS
        return (is_old and has_many) or sample.at_s <= now.at_s - _MAX_WINDOWS * self._window_s

    def _queue_s(self, waited_s: float) -> float:
        """What is more than the least that was ever waited lately, which messages need for their way."""
        self._least_wait_s = min(waited_s, self._least_wait_s + _WAIT_GROWTH * waited_s)
        return waited_s - self._least_wait_s

    def _note_round(self, num_requests: float, round_s: float) -> None:
        if self._fit is None:
            self._fit = OnlineFit([round_s, round_s])
        self._fit.note([1.0, num_requests / _FEW_REQUESTS], round_s)

    def _curve(self, known: CapacityEstimate | None, has_drafters: bool) -> RoundCurve | None:
        """How long it takes batches of each size to commit the present acceptance length for each request."""
        if known is not None:
            rates = [
                max(rates.plain, rates.drafted or 0.0) if has_drafters else rates.plain
                for rates in known.rates[: len(self._sizes)]
            ]
            seconds = [size * self._length / rate for size, rate in zip(self._sizes, rates, strict=True)]
        elif self._fit is not None:
            least_s = self._fit.predict([1.0, 0.0]) / 2
            seconds = [max(least_s, self._fit.predict([1.0, size / _FEW_REQUESTS])) for size in self._sizes]
        else:
            return None
        if len(seconds) == 1:
            return RoundCurve((1, 2), (seconds[0], 2 * seconds[0]))
        return RoundCurve(self._sizes, tuple(max(s, 1e-6) for s in seconds))


def _gain(known: CapacityEstimate | None, load: PresentLoad) -> float:
    """Infinite while it is not known: then drafting goes on."""
    if not load.wants_drafts:
        return 0.0
    present = known.rates[-1] if known is not None else None
    return inf if present is None or present.drafted is None else present.drafted / present.plain
