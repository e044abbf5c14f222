"""Which requests are drafted for, and which decode plainly: decided before drafting, request by request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log

from dspine_cluster.core.draft_value import SurvivalHistogram, best_rate, gap_of
from dspine_cluster.core.pass_cost import CostCurve
from dspine_cluster.core.realised_rate import RealisedRate, RoundKind

Curve = Sequence[float]
"""The survivals of a block's proposals."""
PassCurve = Callable[[int], CostCurve]
DraftSeconds = Callable[[int], float]

_MAX_CURVES = 32
_FIRST_CURVES, _EVERY_CURVES = 4, 8
"""Of each request its first curves and later ones from time to time stand for what requests are like, so that one that
goes on for long does not hide the others."""
_HASTY_RESTS = 8
"""A request that switches again after fewer rests than this makes them longer."""
_NUM_CANDIDATES = 8
"""Shares of the requests, the best first, that are considered for drafting, beside none."""


@dataclass(frozen=True, slots=True)
class DraftOrPlainSettings:
    """How readily the decision changes."""

    hysteresis: float = 0.02
    """Another assignment must promise this much more throughput."""
    mixed_margin: float = 0.2
    """One that treats requests differently must promise this much more again: its drafts are made, and its features
    taken in, beside passes that go on."""
    first_rounds: int = 4
    """Passes before the first decision."""
    min_rounds: int = 16
    """Passes between two decisions."""
    max_rounds: int = 512
    """The same while one switch follows the other."""
    crowd_factor: float = 1.5
    """A change of the number of requests by more than this is answered at once."""
    close_ratio: float = 0.7
    """From this share of the present throughput on, plain decoding is worth a measurement."""
    memory_blocks: float = 32.0
    """Verified blocks that a request's acceptance is averaged over."""
    prior_trials: float = 16.0
    """Verified positions until a request is judged by its own acceptance rather than by what its rows promised."""
    stale_rounds: int = 512
    """Passes without a block after which what was drafted for a request says nothing about it any more."""


DEFAULT_DRAFT_OR_PLAIN = DraftOrPlainSettings()


@dataclass(slots=True)
class _Record:
    """One request; counts fade with every verified block."""

    is_drafting: bool
    accepted: float = 0.0
    predicted: float = 0.0
    trials: float = 0.0
    drafted_round: int = 0
    switched_round: int = 0
    num_curves: int = 0
    curves: list[Curve] = field(default_factory=list)


class DraftOrPlain:
    """Keeps an assignment until another is clearly better, and the longer, the more often it has just changed."""

    def __init__(self, settings: DraftOrPlainSettings = DEFAULT_DRAFT_OR_PLAIN) -> None:
        self.num_switches = 0
        """Requests that changed sides."""
        self.realised = RealisedRate()
        """Corrects what is predicted."""
        self._settings = settings
        self._fade = 1.0 - 1.0 / settings.memory_blocks
        self._records: dict[int, _Record] = {}
        self._num_drafting = 0  # of them
        self._recent: deque[Curve] = deque(maxlen=_MAX_CURVES)  # of all requests
        self._round = 0
        self._drafts_newcomers = True
        self._newcomers: list[int] = []
        self._decided_round = self._switched_round = 0
        self._decided_requests = 0
        self._rest_rounds = settings.min_rounds
        self._plain_ratio = 1.0  # throughput of plain decoding over that of the present assignment
        self._hoped_ratio = 0.0  # the same at best

    @property
    def num_requests(self) -> int:
        return len(self._records)

    @property
    def num_drafting(self) -> int:
        """May be asked from another thread."""
        return self._num_drafting

    @property
    def drafts_newcomers(self) -> bool:
        """Whether the last new requests were drafted for at first."""
        return self._drafts_newcomers

    @property
    def is_plain_close(self) -> bool:
        """Whether all are drafted for although plain decoding would be nearly as fast."""
        return self._plain_ratio >= self._settings.close_ratio and self.num_drafting == len(self._records)

    @property
    def may_plain_be_faster(self) -> bool:
        """Whether it is drafted only because too little is known of plain decoding."""
        return self._hoped_ratio >= 1.0 and self.num_drafting > 0

    @property
    def is_due(self) -> bool:
        """Whether to decide anew."""
        if not self._records or not self._recent or self._round < self._settings.first_rounds:
            return False
        rounds = self._round - self._decided_round
        if self._is_crowd_new or rounds >= self._rest_rounds:
            return True
        return rounds >= self._settings.min_rounds and self.num_drafting > 0

    @property
    def _is_crowd_new(self) -> bool:
        small, large = sorted((self._decided_requests, len(self._records)))
        return large > self._settings.crowd_factor * small

    def join(self, *uids: int) -> None:
        """Know requests; harmless when they are known."""
        new = [uid for uid in uids if uid not in self._records]
        self._records.update((uid, _Record(self._drafts_newcomers)) for uid in new)
        self._newcomers += new
        self._num_drafting += len(new) * self._drafts_newcomers

    def is_drafting(self, uid: int) -> bool:
        return self._records[uid].is_drafting

    def forget(self, uid: int) -> None:
        record = self._records.pop(uid, None)
        self._num_drafting -= record is not None and record.is_drafting

    def note(self, acceptances: Iterable[tuple[int, int, int, float]]) -> None:
        """Of requests: (uid, verified positions up to the first rejection, how many were accepted, how many of these
        were predicted to be)."""
        fade, find = self._fade, self._records.get
        for uid, num_trials, num_accepted, predicted in acceptances:
            record = find(uid)
            if record is not None:
                record.accepted = record.accepted * fade + num_accepted
                record.predicted = record.predicted * fade + predicted
                record.trials = record.trials * fade + num_trials

    def note_curve(self, uid: int, curve: Curve) -> None:
        """The survivals of all that was drafted for a request, verified or not. Few requests are remembered better."""
        record = self._records.get(uid)
        if record is not None:
            if record.num_curves < _FIRST_CURVES or record.num_curves % _EVERY_CURVES == 0:
                self._recent.append(curve)
            record.num_curves += 1
            kept = max(1, _MAX_CURVES // len(self._records))
            record.curves = [*record.curves[-kept + 1 :], curve] if kept > 1 else [curve]
            record.drafted_round = self._round

    def end_pass(self) -> None:
        self._round += 1

    def promises(self) -> list[list[Curve]]:
        """Survivals to expect of each request's next block; where there are no requests, of what they were like."""
        if not self._recent:
            return []
        if not self._records:
            return [list(self._recent)]
        return [self._promise(record, number) for number, record in enumerate(self._records.values())]

    def place(self, curve_of: PassCurve, draft_s_of: DraftSeconds) -> None:
        """Decide for the requests that are new, by what requests are like and not by what those are that happen to
        run: draft for all of them or for none, which must not be better with none of the others either. Arguments as
        for `decide`."""
        uids, self._newcomers = self._newcomers, []
        newcomers = [self._records[uid] for uid in uids if uid in self._records]
        if not newcomers or not self._recent:
            return
        histogram = SurvivalHistogram()
        plain = self._rate(histogram, curve_of, draft_s_of)
        others = [(i, r) for i, r in enumerate(self._records.values()) if not any(r is n for n in newcomers)]
        for number, record in others:
            if record.is_drafting:
                histogram.add(self._promise(record, number))
        without = max(plain, self._rate(histogram, curve_of, draft_s_of))
        for number, record in enumerate(newcomers):
            histogram.add(self._promise(record, number))
        rate = self._rate(histogram, curve_of, draft_s_of)
        margin = 1.0 + self._settings.hysteresis
        self._drafts_newcomers = (
            rate * margin > without if self._drafts_newcomers else rate > margin * without
        )
        for record in newcomers:
            record.is_drafting = self._drafts_newcomers
        self._count_drafting()

    def decide(self, curve_of: PassCurve, draft_s_of: DraftSeconds) -> None:
        """Compare drafting for the most promising requests, as many as it may be, with what is done now. Soon after a
        switch no more than now are considered: what does not keep its promise ends at once. Of requests of which many
        are new, all or none: nothing is known of each.

        Args:
            curve_of: the cost of a pass with that many requests.
            draft_s_of: the time of a batch of that many drafts.
        """
        is_new = self._is_crowd_new
        is_rested = is_new or self._round - self._switched_round >= self._rest_rounds
        self._decided_round, self._decided_requests = self._round, len(self._records)
        promises = sorted(
            ((self._promise(record, i), record) for i, record in enumerate(self._records.values())),
            key=lambda pair: sum(map(sum, pair[0])) / len(pair[0]),
            reverse=True,
        )
        num_requests = len(promises)
        candidate = SurvivalHistogram()
        rates = {0: self._rate(candidate, curve_of, draft_s_of)}
        for count, (curves, _) in enumerate(promises, 1):
            candidate.add(curves)
            if count * _NUM_CANDIDATES // num_requests > (count - 1) * _NUM_CANDIDATES // num_requests:
                rates[count] = self._rate(candidate, curve_of, draft_s_of)
        drafting = [curves for curves, record in promises if record.is_drafting]
        if len(drafting) in (0, num_requests):
            present_rate = rates[len(drafting)]
        else:
            present = SurvivalHistogram()
            for curves in drafting:
                present.add(curves)
            present_rate = self._rate(present, curve_of, draft_s_of)
        self._plain_ratio = rates[0] / present_rate
        unknown = self.realised.hope(RoundKind.NONE) / self.realised.ratio(RoundKind.NONE)
        self._hoped_ratio = unknown * self._plain_ratio
        best = max(
            (n for n in rates if (is_rested or n <= len(drafting)) and not (is_new and 0 < n < num_requests)),
            key=lambda count: rates[count],
        )
        if rates[best] > (1.0 + self._settings.hysteresis) * present_rate:
            self._switch([record for _, record in promises], best)

    def _rate(self, drafted: SurvivalHistogram, curve_of: PassCurve, draft_s_of: DraftSeconds) -> float:
        """Tokens a second when it is drafted for those in `drafted` and the others decode plainly."""
        num_requests = len(self._records)
        num_plain = num_requests - drafted.num_requests
        plain_s = curve_of(num_plain).seconds(num_plain) if num_plain else 0.0
        gap = gap_of(num_plain, draft_s_of(drafted.num_requests), plain_s)
        value = best_rate(drafted.rows(), num_requests, curve_of(num_requests), gap)
        kind = RoundKind.of(drafted.num_requests, num_requests)
        value *= self.realised.ratio(kind)
        return value / (1.0 + self._settings.mixed_margin) if kind is RoundKind.SOME else value

    def _switch(self, records: Sequence[_Record], num_drafting: int) -> None:
        """Draft for the first of `records`."""
        settings = self._settings
        self._switched_round = self._round
        switched = [r for number, r in enumerate(records) if r.is_drafting != (number < num_drafting)]
        last_round = max(record.switched_round for record in switched)
        for record in switched:
            record.is_drafting = not record.is_drafting
            record.switched_round = self._round
        self._count_drafting()
        self.num_switches += len(switched)
        since = (self._round - last_round) / self._rest_rounds if last_round else inf
        factor = 2.0 if since < _HASTY_RESTS else 0.5 if since > 4 * _HASTY_RESTS else 1.0
        self._rest_rounds = int(
            min(max(self._rest_rounds * factor, settings.min_rounds), settings.max_rounds)
        )

    def _count_drafting(self) -> None:
        self._num_drafting = sum([record.is_drafting for record in self._records.values()])

    def _promise(self, record: _Record, number: int) -> list[Curve]:
        """Survivals to expect of the request's next block: of its last ones, or of anybody's if these are too old.

        Its own acceptance corrects what rows promise by a power: that which makes the mean promised acceptance of what
        was verified the observed one.
        """
        prior = self._settings.prior_trials
        if not record.curves or self._round - record.drafted_round > self._settings.stale_rounds:
            kept = max(1, len(self._recent) // len(self._records))
            return [self._recent[(number * kept + i) % len(self._recent)] for i in range(kept)]
        if record.trials == 0.0:
            return record.curves
        predicted = record.predicted / record.trials
        observed = (record.accepted + prior * predicted) / (record.trials + prior)
        exponent = _log(observed) / _log(predicted)
        return [[survival**exponent for survival in curve] for curve in record.curves]


def _log(rate: float) -> float:
    return log(min(max(rate, 0.02), 0.98))
