"""Which requests are drafted for, and which decode plainly: decided before drafting, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from dspine_cluster.core.cost_curve import CostCurve
from dspine_cluster.core.draft_promise import Curve, DraftPromises, RequestRecord
from dspine_cluster.core.draft_value import SurvivalHistogram, best_rate, gap_of
from dspine_cluster.core.realised_rate import RealisedRate, RoundKind

PassCurve = Callable[[int, bool], CostCurve]
"""The cost of a pass with that many requests, with features for drafters or without."""
DraftSeconds = Callable[[int], float]

_HASTY_RESTS = 8
"""A request that switches again after fewer rests than this makes them longer."""
_NUM_CANDIDATES = 8
"""Shares of the requests, the best first, that are considered for drafting, beside none."""
_HYSTERESIS = 0.02
"""Another assignment must promise this much more throughput."""
_MIXED_MARGIN = 0.2
"""One that treats requests differently must promise this much more again: its drafts are made, and its features
taken in, beside passes that go on."""
_FIRST_ROUNDS = 4
"""Passes before the first decision."""
_MIN_ROUNDS = 16
"""Passes between two decisions."""
_MAX_ROUNDS = 512
"""The same while one switch follows the other."""
_CROWD_FACTOR = 1.5
"""More requests than before by this factor are answered at once."""
_FEWER_PASSES = 8
"""Fewer by that factor once they have been for so many passes: those that ended together may soon have successors."""
_CLOSE_RATIO = 0.7
"""From this share of the present throughput on, plain decoding is worth a measurement."""
_NEAR_RATIO = 0.95
"""From this share of the throughput of plain decoding on, it may soon be drafted again."""
_MEMORY_BLOCKS = 32.0
"""Verified blocks that a request's acceptance is averaged over."""
_PRIOR_TRIALS = 16.0
"""Verified positions until a request is judged by its own acceptance rather than by what its rows promised."""
_STALE_ROUNDS = 512
"""Passes without a block after which what was drafted for a request says nothing about it any more."""


class DraftOrPlain:
    """Keeps an assignment until another is clearly better, and the longer, the more often it has just changed."""

    def __init__(self) -> None:
        self.num_switches = 0
        """Requests that changed sides."""
        self.realised = RealisedRate()
        """Corrects what is predicted."""
        self._promises = DraftPromises(1.0 - 1.0 / _MEMORY_BLOCKS, _PRIOR_TRIALS, _STALE_ROUNDS)
        self._records: dict[int, RequestRecord] = {}
        self._num_drafting = 0  # of them
        self._round = 0
        self._drafts_newcomers = True
        self._newcomers: list[int] = []
        self._joining: list[RequestRecord] = []
        """Stand for those that will be known soon."""
        self._decided_round = self._switched_round = 0
        self._decided_requests = 0
        self._num_fewer_passes = 0  # with much fewer, up to now
        self._rest_rounds = _MIN_ROUNDS
        self._plain_ratio = 1.0  # throughput of plain decoding over that of the present assignment
        self._hoped_ratio = 0.0  # the same at best
        self._drafting_ratio = 1.0
        """Throughput of the best assignment with drafts over that of plain decoding."""

    @property
    def num_requests(self) -> int:
        return len(self._records)

    @property
    def num_drafting(self) -> int:
        """May be asked from another thread."""
        return self._num_drafting

    @property
    def drafts_newcomers(self) -> bool:
        """Whether new requests are drafted for at first."""
        return self._drafts_newcomers

    @property
    def is_plain_close(self) -> bool:
        """Whether all are drafted for although plain decoding would be nearly as fast."""
        return self._plain_ratio >= _CLOSE_RATIO and self.num_drafting == len(self._records)

    @property
    def may_plain_be_faster(self) -> bool:
        """Whether it is drafted only because too little is known of plain decoding."""
        return self._hoped_ratio >= 1.0 and self.num_drafting > 0

    @property
    def is_drafting_near(self) -> bool:
        """Whether drafting for some or all would be nearly as fast as plain decoding, or faster."""
        return self._drafting_ratio >= _NEAR_RATIO

    @property
    def is_due(self) -> bool:
        """Whether to decide anew."""
        is_known = self._records and self._promises.recent and self._round >= _FIRST_ROUNDS
        if not is_known or self._may_be_more_soon:
            return False
        rounds = self._round - self._decided_round
        if self._is_crowd_new or rounds >= self._rest_rounds:
            return True
        return rounds >= _MIN_ROUNDS and self.num_drafting > 0

    @property
    def _num_all(self) -> int:
        """Those that will be known soon are among them."""
        return len(self._records) + len(self._joining)

    @property
    def _is_crowd_new(self) -> bool:
        """Asked where there may not be more soon."""
        return self._are_much_fewer or self._num_all > _CROWD_FACTOR * self._decided_requests

    @property
    def _are_much_fewer(self) -> bool:
        return self._decided_requests > _CROWD_FACTOR * self._num_all

    @property
    def _may_be_more_soon(self) -> bool:
        """Whether it is too early to tell if there are fewer requests for long."""
        return self._are_much_fewer and self._num_fewer_passes < _FEWER_PASSES

    def join(self, *uids: int) -> None:
        """Know requests; harmless when they are known."""
        new = [uid for uid in uids if uid not in self._records]
        if not new:
            return
        self._records.update((uid, RequestRecord(self._drafts_newcomers)) for uid in new)
        self._newcomers += new
        self._num_drafting += len(new) * self._drafts_newcomers

    def note_joining(self, num_requests: int) -> None:
        """So many more will join soon: what is decided now is decided for them, too."""
        self._joining = [RequestRecord(self._drafts_newcomers) for _ in range(num_requests)]

    def is_drafting(self, uid: int) -> bool:
        return self._records[uid].is_drafting

    def forget(self, uid: int) -> None:
        record = self._records.pop(uid, None)
        if record is None:
            return
        self._num_drafting -= record.is_drafting
        if not self._records:
            self._decided_requests = 0

    def note(self, acceptances: Iterable[tuple[int, int, int, float]]) -> None:
        """Of requests: (uid, verified positions up to the first rejection, how many were accepted, how many of these
        were predicted to be)."""
        find, note = self._records.get, self._promises.note
        for uid, num_trials, num_accepted, predicted in acceptances:
            record = find(uid)
            if record is not None:
                note(record, num_trials, num_accepted, predicted)

    def note_curve(self, uid: int, curve: Curve) -> None:
        """The survivals of all that was drafted for a request, verified or not."""
        record = self._records.get(uid)
        if record is not None:
            self._promises.note_curve(record, curve, self._round, len(self._records))

    def end_pass(self) -> None:
        self._round += 1
        self._num_fewer_passes = self._num_fewer_passes + 1 if self._are_much_fewer else 0

    def promises(self) -> list[list[Curve]]:
        """Survivals to expect of each request's next block; where there are no requests, of what they were like."""
        if not self._promises.recent:
            return []
        if not self._records:
            return [list(self._promises.recent)]
        return [self._promise(record, number) for number, record in enumerate(self._records.values())]

    def place(self, curve_of: PassCurve, draft_s_of: DraftSeconds) -> None:
        """Decide for the requests that are new or will be soon, by what requests are like and not by what those are
        that happen to run: draft for all of them or for none, which must not be better with none of the others either.
        Where there are much fewer than a moment ago, as before: that may soon be over.
        Arguments as for `decide`."""
        if not self._newcomers and not self._joining:
            return
        uids, self._newcomers = self._newcomers, []
        newcomers = [*(self._records[uid] for uid in uids if uid in self._records), *self._joining]
        if not newcomers or not self._promises.recent or self._may_be_more_soon:
            return
        histogram = SurvivalHistogram()
        plain = self._rate(histogram, curve_of, draft_s_of)
        for number, record in enumerate(self._records.values()):
            if record.is_drafting and record not in newcomers:
                histogram.add(self._promise(record, number))
        without = max(plain, self._rate(histogram, curve_of, draft_s_of))
        for number, record in enumerate(newcomers):
            histogram.add(self._promise(record, number))
        rate = self._rate(histogram, curve_of, draft_s_of)
        margin = 1.0 + _HYSTERESIS
        self._drafts_newcomers = (
            rate * margin > without if self._drafts_newcomers else rate > margin * without
        )
        for record in newcomers:
            record.is_drafting = self._drafts_newcomers
        self._count_drafting()

    def decide(self, curve_of: PassCurve, draft_s_of: DraftSeconds) -> None:
        """Compare drafting for the most promising requests, as many as it may be, with what is done now. Soon after a
        switch no more than now are considered: what does not keep its promise ends at once. Of requests of which many
        have come, all or none: nothing is known of each.

        Args:
            curve_of: the cost of passes.
            draft_s_of: the time of a batch of that many drafts.
        """
        records = [*self._records.values(), *self._joining]
        has_grown = self._is_crowd_new and len(records) > self._decided_requests
        is_rested = self._is_crowd_new or self._round - self._switched_round >= self._rest_rounds
        self._decided_round, self._decided_requests = self._round, len(records)
        promises = sorted(
            ((self._promise(record, i), record) for i, record in enumerate(records)),
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
        hope = self.realised.hope(RoundKind.NONE, num_requests)
        self._hoped_ratio = self._plain_ratio * hope / self.realised.ratio(RoundKind.NONE, num_requests)
        self._drafting_ratio = max(rates[count] for count in rates if count) / rates[0]
        best = max(
            (
                n
                for n in rates
                if (is_rested or n <= len(drafting)) and not (has_grown and 0 < n < num_requests)
            ),
            key=lambda count: rates[count],
        )
        if rates[best] > (1.0 + _HYSTERESIS) * present_rate:
            self._switch([record for _, record in promises], best)
            self._drafts_newcomers = self._drafts_newcomers and best > 0

    def _rate(self, drafted: SurvivalHistogram, curve_of: PassCurve, draft_s_of: DraftSeconds) -> float:
        """Tokens a second when it is drafted for those in `drafted` and the others decode plainly."""
        num_requests = self._num_all
        num_plain = num_requests - drafted.num_requests
        with_features = drafted.num_requests > 0
        plain_s = curve_of(num_plain, with_features).seconds(num_plain) if num_plain else 0.0
        gap = gap_of(num_plain, draft_s_of(drafted.num_requests), plain_s)
        value = best_rate(drafted.rows(), num_requests, curve_of(num_requests, with_features), gap)
        kind = RoundKind.of(drafted.num_requests, num_requests)
        value *= self.realised.ratio(kind, num_requests)
        return value / (1.0 + _MIXED_MARGIN) if kind is RoundKind.SOME else value

    def _switch(self, records: Sequence[RequestRecord], num_drafting: int) -> None:
        """Draft for the first of `records`."""
        self._switched_round = self._round
        switched = [r for number, r in enumerate(records) if r.is_drafting != (number < num_drafting)]
        last_round = max(record.switched_round for record in switched)
        for record in switched:
            record.is_drafting = not record.is_drafting
            record.switched_round = self._round
        self._count_drafting()
        self.num_switches += len([record for record in switched if record not in self._joining])
        since = (self._round - last_round) / self._rest_rounds if last_round else inf
        factor = 2.0 if since < _HASTY_RESTS else 0.5 if since > 4 * _HASTY_RESTS else 1.0
        self._rest_rounds = int(min(max(self._rest_rounds * factor, _MIN_ROUNDS), _MAX_ROUNDS))

    def _count_drafting(self) -> None:
        self._num_drafting = sum([record.is_drafting for record in self._records.values()])

    def _promise(self, record: RequestRecord, number: int) -> list[Curve]:
        return self._promises.of(record, number, self._round, self._num_all)
