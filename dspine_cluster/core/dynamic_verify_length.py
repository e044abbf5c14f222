"""Drafts and verifies as much as makes tokens come faster, by costs and acceptance learnt on the way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from random import Random

from dspine_cluster.core.block_survival import BlockSurvival
from dspine_cluster.core.capacity_estimate import CapacityEstimate, rates_of
from dspine_cluster.core.cost_curve import CostCurve
from dspine_cluster.core.decision_figures import DecisionFigures
from dspine_cluster.core.draft_cost import DraftCost
from dspine_cluster.core.draft_or_plain import DraftOrPlain
from dspine_cluster.core.draft_value import gap_of
from dspine_cluster.core.exploration import Exploration, PlainTrials
from dspine_cluster.core.feature_lead import FeatureLead
from dspine_cluster.core.halves import Halves
from dspine_cluster.core.pass_cost import PassCost
from dspine_cluster.core.plain_stretch import PlainStretch
from dspine_cluster.core.realised_rate import ExpectedRound, RoundKind
from dspine_cluster.core.verify_length import NO_LOAD, Blocks, Outcomes, PassLoad, VerifyLengthPolicy
from dspine_cluster.core.verify_walk import RoundPrice, choose_lengths, first_that_fit
from dspine_cluster.types import CHUNK_GRID_TOKENS, MAX_PROPOSALS

_CURVES_PER_PASS = 4
_AVERAGE_WEIGHT = 0.2
_FIRST_PASSES = 16
"""Until costs are known well enough for their errors to be told from those of the fit."""


class DynamicVerifyLength(VerifyLengthPolicy):
    """The policy of `verify: dynamic`. For one thread; deterministic given what it is told and `random`."""

    def __init__(
        self,
        random: Random,
        *,
        max_proposals: int = MAX_PROPOSALS,
        buckets: Sequence[int] = (),
        exploration: Exploration | None = None,
    ) -> None:
        """`buckets` are the sizes to which the engine pads the tokens of a pass. `random` picks who is explored."""
        self.draft_or_plain = DraftOrPlain()
        self.pass_cost = PassCost(buckets)
        self.draft_cost = DraftCost()
        self.halves = Halves()
        self._random = random
        self._exploration = exploration or Exploration()
        self._survival = BlockSurvival(max_proposals)
        self._kv_tokens_each = 0.0  # of the requests of the last pass
        self._had_features = True  # whether the present pass has features
        self._verified_per_block = 0.0  # moving average
        self._num_passes = 0
        self._plain_trials = PlainTrials()
        self._is_plain = False  # whether nothing is drafted for now
        self._features = FeatureLead()
        self._stretch = PlainStretch()
        self._num_joining = 0  # as told last
        self._expected: ExpectedRound | None = None  # of that which ends with the present pass
        self._elapsed_s: float | None = None
        self._figures = DecisionFigures()

    @property
    def wants_drafts(self) -> bool:
        return True

    @property
    def drafts_newcomers(self) -> bool:
        return self.draft_or_plain.drafts_newcomers

    @property
    def wants_features(self) -> bool:
        return self._features.is_on

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        self._expected = None
        if self._stretch.is_on and not self._survival.num_drafted and not any(blocks.num_proposals):
            return list(blocks.num_proposals)
        self._survival.begin(blocks)
        in_full = self._explored(blocks)
        if not self._survival.num_drafted:
            return list(blocks.num_proposals)
        if not self.pass_cost.is_known:
            return first_that_fit(blocks.num_proposals, load.max_verified_tokens)
        price = self._price(len(blocks), load)
        walk = choose_lengths(
            blocks.num_proposals,
            blocks.cells,
            self._survival.rates,
            self._survival.expected,
            price,
            max_verified=load.max_verified_tokens,
            in_full=in_full,
        )
        self._figures.stops[walk.stop] += 1
        in_gap = price.base_tokens - len(blocks)
        self._expected = ExpectedRound(walk.expected_tokens - in_gap, in_gap, walk.expected_s)
        return walk.lengths

    def note_joining(self, num_requests: int) -> None:
        if num_requests == self._num_joining and self._stretch.is_on:
            return
        self._stretch.end()
        self._num_joining = num_requests
        self.draft_or_plain.note_joining(num_requests)

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        if self._stretch.goes_on(uids):
            self._figures.num_plain += len(uids)
            return ()
        self._stretch.end()
        choice = self.draft_or_plain
        choice.join(*uids)
        if self.pass_cost.is_known:
            choice.place(self._curve, self._added_s)
        if choice.is_due:
            choice.decide(self._curve, self._added_s)
        self._arrange()
        if not uids:
            self._features.note_prompts(drafts_newcomers=choice.drafts_newcomers)
            return ()
        is_plain_trial = self._plain_trials.is_next(
            self._exploration,
            is_plain_close=choice.is_plain_close,
            may_plain_be_faster=choice.may_plain_be_faster,
        )
        may_draft = self._features.allows(
            drafting=choice.num_drafting > 0,
            on_trial=self._exploration.is_on,
            drafts_newcomers=choice.drafts_newcomers,
            is_near=choice.is_drafting_near,
        )
        self._is_plain = is_plain_trial or not may_draft
        if self._is_plain:
            self._figures.num_plain += len(uids)
            if not self._features.is_on:
                self._stretch.begin(uids)
            return ()
        if self._exploration.is_due:
            self._exploration.begin(self._random.choice(uids))
            self._figures.num_full_trials += 1
        drafted: Collection[int] = uids
        if choice.num_drafting < choice.num_requests:
            drafted = {uid for uid in uids if uid == self._exploration.uid or choice.is_drafting(uid)}
        self._figures.num_drafted += len(drafted)
        self._figures.num_plain += len(uids) - len(drafted)
        return drafted

    @property
    def has_halves(self) -> bool:
        return self.halves.is_on

    def prefill_room(self, most: int, num_blocks: int, waited_s: float) -> int:
        if not self.pass_cost.is_known or not self.draft_cost.is_known:
            return most
        left_s = self.draft_cost.seconds(num_blocks) - waited_s
        sizes = range(CHUNK_GRID_TOKENS, most + 1, CHUNK_GRID_TOKENS)
        num_fitting = bisect_right(sizes, left_s, key=self._prefill_s)
        if num_fitting:
            return sizes[num_fitting - 1]
        # What the round would wait for a pass of its own, or what the same tokens would add to the round's pass.
        wait_s = self._prefill_s(CHUNK_GRID_TOKENS) - left_s
        added_s = self.pass_cost.prefill_s(num_blocks, CHUNK_GRID_TOKENS, self._features.is_on)
        return CHUNK_GRID_TOKENS if wait_s < added_s else 0

    def note_drafts(self, num_blocks: int, taken_s: float) -> None:
        self._figures.predicted_draft_s += self.draft_cost.seconds(num_blocks) or taken_s
        self._figures.draft_s += taken_s
        self.draft_cost.note(num_blocks, taken_s)

    def note_elapsed(self, elapsed_s: float) -> None:
        self._elapsed_s = elapsed_s

    def note_pass(self, outcomes: Outcomes, load: PassLoad, taken_s: float) -> None:
        is_like_others = not self._survival.num_drafted and not load.num_prefill_tokens
        if self._stretch.is_on and is_like_others and self._stretch.skip_pass():
            self._elapsed_s = None
            self._exploration.end_pass()
            self.halves.end_pass()
            self.draft_or_plain.end_pass()
            self.draft_or_plain.realised.skip_round()
            return
        self._stretch.end()
        num_verified = sum(outcomes.num_verified)
        num_tokens = load.num_prefill_tokens + len(outcomes) + num_verified
        self._had_features = self._features.is_on or self._survival.num_drafted > 0
        predicted_s = 0.0
        if self.pass_cost.is_known:
            predicted_s = self._curve_of(len(outcomes), load, self._had_features).seconds(num_tokens)
            self._figures.predicted_pass_s += predicted_s
            self._figures.pass_s += taken_s
        self._note_realised(len(outcomes), load, predicted_s)
        self.pass_cost.note(
            num_requests=len(outcomes),
            num_tokens=num_tokens,
            num_prefill_tokens=load.num_prefill_tokens,
            num_kv_tokens=load.num_kv_tokens,
            taken_s=taken_s,
            with_features=self._had_features,
        )
        if not len(outcomes):
            return
        self._kv_tokens_each = load.num_kv_tokens / len(outcomes)
        self._num_passes += 1
        self._exploration.end_pass()
        self._features.end_pass()
        self.halves.end_pass()
        if self._survival.num_drafted:
            mean = num_verified / self._survival.num_drafted
            self._verified_per_block += _AVERAGE_WEIGHT * (mean - self._verified_per_block)
            self.draft_or_plain.note(self._survival.acceptances(outcomes, self._exploration.uid))
            if self._exploration.uid is not None and self._exploration.uid in outcomes.uids:
                self._end_exploration(outcomes, num_tokens)
            for uid, survivals in self._survival.curves(
                self._num_passes * _CURVES_PER_PASS, _CURVES_PER_PASS
            ):
                self.draft_or_plain.note_curve(uid, survivals)
            self._survival.learn()
        self.draft_or_plain.end_pass()

    def forget(self, uid: int) -> None:
        self.draft_or_plain.forget(uid)
        if uid == self._exploration.uid:
            self._exploration.cancel()

    def estimate(self, sizes: Sequence[int]) -> CapacityEstimate | None:
        if not self.pass_cost.is_known:
            return None
        rates = rates_of(sizes, self.draft_or_plain.promises(), self._curve, self.draft_cost.seconds)
        prefill_s = self._prefill_s(2 * CHUNK_GRID_TOKENS) - self._prefill_s(CHUNK_GRID_TOKENS)
        return CapacityEstimate(rates, max(0.0, prefill_s) / CHUNK_GRID_TOKENS)

    def figures(self) -> Mapping[str, float]:
        return self._figures.totals | {
            "trials_total{kind=plain}": self._plain_trials.num_trials,
            "drafted_requests": self.draft_or_plain.num_drafting,
            "draft_or_plain_switches_total": self.draft_or_plain.num_switches,
            "halves_take_turns": float(self.halves.is_on),
        }

    def _note_realised(self, num_requests: int, load: PassLoad, predicted_s: float) -> None:
        """Compare rounds with what was expected: they end with their drafts' pass, or where there are none. Of prompts
        in between only counts what they took beyond their part in a pass of all requests. `predicted_s` is what the
        present pass was predicted to take, prompts included; 0 if costs are not known."""
        expected = self._expected
        elapsed_s = self._elapsed_s if self._num_passes >= _FIRST_PASSES else None
        if elapsed_s is not None and expected is None and load.num_prefill_tokens:
            elapsed_s -= self.pass_cost.prefill_s(
                self.draft_or_plain.num_requests, load.num_prefill_tokens, self._had_features
            )
        if expected is None and num_requests and self._is_plain and predicted_s:
            if load.num_prefill_tokens:
                predicted_s = self._curve(num_requests, self._had_features).seconds(num_requests)
            expected = ExpectedRound(num_requests, 0.0, predicted_s)
        tokens = num_requests if expected is None else expected.pass_tokens
        self.draft_or_plain.realised.note_pass(tokens, elapsed_s)
        if expected is not None:
            kind = RoundKind.of(self._survival.num_drafted, num_requests)
            self.draft_or_plain.realised.end_round(kind, self.draft_or_plain.num_requests, expected)
        self._elapsed_s = None

    def _explored(self, blocks: Blocks) -> Sequence[int]:
        """The row of the request on trial, if it is there and its draft has come."""
        uid = self._exploration.uid
        if uid is None or uid not in blocks.uids:
            return ()
        row = blocks.uids.index(uid)
        if blocks.num_proposals[row]:
            return (row,)
        self._exploration.miss()
        return ()

    def _price(self, num_requests: int, load: PassLoad) -> RoundPrice:
        curve = self._curve_of(num_requests, load, with_features=True)
        num_plain = num_requests - (num_drafted := self._survival.num_drafted)
        draft_s = self.draft_cost.seconds(num_drafted)
        if self.halves.is_on:  # the other half runs meanwhile
            draft_s = max(0.0, draft_s - self._drafted_pass_s(num_drafted))
        gap = gap_of(num_plain, draft_s, curve.seconds(num_plain) if num_plain else 0.0)
        return RoundPrice(
            curve=curve,
            num_tokens=num_requests + load.num_prefill_tokens,
            base_tokens=num_requests + gap.num_tokens,
            base_s=gap.seconds,
        )

    def _prefill_s(self, num_tokens: int) -> float:
        curve = self._curve_of(0, PassLoad(num_prefill_tokens=num_tokens), self._features.is_on)
        return curve.seconds(num_tokens)

    def _curve_of(self, num_requests: int, load: PassLoad, with_features: bool) -> CostCurve:
        return self.pass_cost.curve(
            num_requests=num_requests,
            num_prefill_tokens=load.num_prefill_tokens,
            num_kv_tokens=load.num_kv_tokens,
            with_features=with_features,
        )

    def _curve(self, num_requests: int, with_features: bool = True) -> CostCurve:
        """The cost of a pass of that many of the present requests."""
        num_kv_tokens = int(self._kv_tokens_each * num_requests)
        return self._curve_of(num_requests, PassLoad(num_kv_tokens=num_kv_tokens), with_features)

    def _drafted_pass_s(self, num_requests: int) -> float:
        """The time of a pass of that many requests that verify as much as the last ones did."""
        return self._curve(num_requests).seconds(round(num_requests * (1.0 + self._verified_per_block)))

    def _added_s(self, num_requests: int) -> float:
        """What drafts for that many requests add to their passes."""
        return self.halves.added_s(num_requests, self._drafted_pass_s, self.draft_cost.seconds)

    def _arrange(self) -> None:
        """Have two halves take turns where that is faster. Plain requests fill gaps as well: then there are none."""
        choice = self.draft_or_plain
        num_requests = choice.num_drafting if choice.num_drafting == choice.num_requests else 0
        if self.pass_cost.is_known and self.draft_cost.is_known:
            self.halves.decide(num_requests, self._drafted_pass_s, self.draft_cost.seconds)

    def _end_exploration(self, outcomes: Outcomes, num_tokens: int) -> None:
        """If the trial was made, weigh what it cost, in tokens that would have come instead."""
        row = outcomes.uids.index(self._exploration.uid)
        if not (num_verified := outcomes.num_verified[row]):
            return
        num_requests = self.draft_or_plain.num_requests
        curve = self._curve(num_requests)
        pass_s, num_for_trial = curve.seconds(num_requests), self._features.take_num_for_trial()
        if self.draft_or_plain.is_drafting(outcomes.uids[row]):
            extra_s = curve.seconds(num_tokens) - curve.seconds(max(1, num_tokens - num_verified))
            self._exploration.end(num_requests, cost_tokens=extra_s * num_requests / pass_s)
            return
        assert self._expected is not None
        realised = self.draft_or_plain.realised
        own = realised.ratio(RoundKind.of(self._survival.num_drafted, num_requests), num_requests)
        seconds = self._expected.seconds * realised.ratio(RoundKind.NONE, num_requests) / own
        plain_s = self._curve(num_requests, with_features=False).seconds(num_requests)
        seconds += max(0, num_for_trial - 1) * (pass_s - plain_s)  # of the passes before the one on trial
        cost_tokens = max(0.0, (seconds / plain_s - 1.0) * num_requests - self._expected.gap_tokens)
        self._exploration.end(num_requests, cost_tokens=cost_tokens, num_accepted=outcomes.num_accepted[row])
