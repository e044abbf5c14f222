from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.draft_or_plain import DraftOrPlain


class Bench:
    """Requests of given acceptance under given costs; every request that is drafted for has 8 proposals verified."""

    def __init__(
        self, num_requests: int, *, token_s: float, draft_s: Callable[[int], float], promise: float = 0.6
    ) -> None:
        self.choice = DraftOrPlain()
        self.acceptance = [0.8] * num_requests
        self.token_s = token_s
        self.features_s = 0.0
        self._promise = promise
        self.draft_s = draft_s
        self._random = Random(0)
        self.uids = list(range(num_requests))
        for uid in self.uids:
            self.choice.join(uid)

    @property
    def drafting(self) -> list[int]:
        return [uid for uid in self.uids if self.choice.is_drafting(uid)]

    def run(self, num_passes: int) -> None:
        for _ in range(num_passes):
            for uid in self.drafting:
                self.draft(uid)
            self.choice.end_pass()
            if self.choice.is_due:
                self.choice.decide(self.curve_of, self.draft_s)

    def join(self, uid: int) -> None:
        self.uids.append(uid)
        self.acceptance += [0.8] * (uid + 1 - len(self.acceptance))
        self.choice.join(uid)
        self.choice.place(self.curve_of, self.draft_s)

    def leave(self, uid: int) -> None:
        self.uids.remove(uid)
        self.choice.forget(uid)

    def leave_all(self) -> None:
        for uid in [*self.uids]:
            self.leave(uid)

    def plain_rate(self, num_requests: int) -> float:
        return num_requests / self.curve_of(num_requests).seconds(num_requests)

    def rate_of_all(self, num_requests: int) -> float:
        """Tokens a second when it is drafted for all, and the best number of proposals of each is verified."""
        expected, rates = float(num_requests), []
        for j in range(9):
            expected += num_requests * self._promise**j if j else 0.0
            seconds = self.curve_of(num_requests).seconds(num_requests * (j + 1)) + self.draft_s(num_requests)
            rates.append(expected / seconds)
        return max(rates)

    def curve_of(self, num_requests: int, with_features: bool = True) -> CostCurve:
        return CostCurve(CostShape([0], [1.0 + self.features_s * with_features], [self.token_s]))

    def draft(self, uid: int) -> None:
        """Draft for a request; its rows promise the same whatever the truth is."""
        accepted = next((i for i in range(8) if self._random.random() >= self.acceptance[uid]), 8)
        trials = min(accepted + 1, 8)
        self.choice.note([(uid, trials, accepted, self._promise * trials)])
        self.choice.note_curve(uid, [self._promise ** (j + 1) for j in range(8)])


def test_cheap_drafts_are_made_for_all() -> None:
    bench = Bench(6, token_s=0.001, draft_s=lambda count: 0.1)
    bench.run(100)
    assert len(bench.drafting) == 6


def test_dear_drafts_are_made_for_none() -> None:
    bench = Bench(6, token_s=0.001, draft_s=lambda count: 10.0)
    bench.run(100)
    assert bench.drafting == []
    bench.join(6)
    assert bench.choice.num_drafting == 0
    assert not bench.choice.is_drafting(6)
    assert not bench.choice.drafts_newcomers


def test_each_request_is_judged_by_its_own_acceptance() -> None:
    bench = Bench(8, token_s=0.005, draft_s=lambda count: 0.3 * count)
    bench.acceptance = [0.9] * 4 + [0.05] * 4
    bench.run(150)
    assert set(bench.drafting) <= {0, 1, 2, 3}
    assert len(bench.drafting) == bench.choice.num_drafting >= 3


def test_a_request_alone_is_drafted_for_as_long_as_it_pays() -> None:
    bench = Bench(1, token_s=0.01, draft_s=lambda count: 1.0)
    bench.run(100)
    assert bench.drafting == [0]
    bench.acceptance = [0.1]
    bench.run(100)
    assert bench.drafting == []
    bench.acceptance = [0.9]
    for _ in range(10):
        bench.draft(0)
    bench.run(600)
    assert bench.drafting == [0]


def test_a_newcomer_is_judged_by_what_requests_are_like_not_by_the_one_before() -> None:
    bench = Bench(1, token_s=0.01, draft_s=lambda count: 1.0)
    for uid in range(1, 6):
        bench.run(20)
        bench.leave(uid - 1)
        bench.join(uid)
    bench.acceptance[5] = 0.05
    bench.run(300)
    assert not bench.choice.is_drafting(5)
    bench.leave(5)
    bench.join(6)
    assert bench.choice.is_drafting(6)


def test_where_both_are_as_good_it_does_not_flap() -> None:
    # 8 proposals at acceptance 0.6 give 2.48 tokens a round of 2.48 plain steps.
    bench = Bench(1, token_s=0.0, draft_s=lambda count: 1.475)
    bench.acceptance = [0.6]
    for _ in range(100):
        bench.draft(0)
        bench.run(20)
    assert bench.choice.num_switches <= 8


def test_switches_that_follow_each_other_get_slower() -> None:
    bench = Bench(1, token_s=0.0, draft_s=lambda count: 1.0)
    decisions = []
    for number in range(60):
        bench.acceptance = [0.95 if number % 2 else 0.05]
        for _ in range(40):
            bench.draft(0)
        bench.run(16)
        decisions.append(tuple(bench.drafting))
    assert bench.choice.num_switches < 15


def test_a_crowd_is_answered_at_once() -> None:
    bench = Bench(2, token_s=0.5, draft_s=lambda count: 0.1)
    bench.run(20)
    assert not bench.choice.is_due
    for uid in range(2, 6):
        bench.choice.join(uid)
    assert bench.choice.is_due


def test_it_tells_when_plain_decoding_is_nearly_as_fast() -> None:
    far = Bench(4, token_s=0.0, draft_s=lambda count: 0.1)
    far.run(50)
    assert not far.choice.is_plain_close
    close = Bench(4, token_s=0.0, draft_s=lambda count: 2.7, promise=0.8)
    close.run(50)
    assert close.drafting == [0, 1, 2, 3]
    assert close.choice.is_plain_close


def test_what_has_ended_is_forgotten() -> None:
    bench = Bench(3, token_s=0.001, draft_s=lambda count: 0.1)
    bench.choice.forget(1)
    bench.choice.forget(1)
    bench.choice.note([(1, 1, 1, 0.5)])
    assert (bench.choice.num_requests, bench.choice.num_drafting) == (2, 2)


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    """Some requests that have been decided for, of equal acceptance."""
    promise = draw(st.sampled_from([0.2, 0.6, 0.9]))
    draft_s = draw(st.sampled_from([0.02, 0.1, 0.3, 1.0, 3.0]))
    token_s = draw(st.sampled_from([0.0, 0.02, 0.1, 0.3]))
    num_requests = draw(st.integers(1, 12))
    bench = Bench(num_requests, token_s=token_s, draft_s=lambda count: draft_s * count, promise=promise)
    bench.acceptance = [promise] * num_requests
    bench.choice.place(bench.curve_of, bench.draft_s)
    bench.run(40)
    return bench


@given(benches(), st.integers(1, 30))
def test_newcomers_are_all_treated_alike_and_nobody_else_is_touched(bench: Bench, num_new: int) -> None:
    before, old = bench.drafting, [*bench.uids]
    new = list(range(100, 100 + num_new))
    bench.choice.join(*new)
    bench.choice.place(bench.curve_of, bench.draft_s)
    assert [bench.choice.is_drafting(uid) for uid in new] == [bench.choice.drafts_newcomers] * num_new
    assert [uid for uid in old if bench.choice.is_drafting(uid)] == before
    assert bench.choice.num_drafting == len(before) + num_new * bench.choice.drafts_newcomers


@given(benches(), st.integers(1, 30))
def test_newcomers_are_drafted_for_where_that_beats_plain_decoding_of_all(bench: Bench, num_new: int) -> None:
    bench.leave_all()
    for uid in range(100, 100 + num_new):
        bench.choice.join(uid)
    bench.choice.place(bench.curve_of, bench.draft_s)
    gain = bench.rate_of_all(num_new) / bench.plain_rate(num_new)
    assert bench.choice.drafts_newcomers == (gain > 1.0) or 1 / 1.02 <= gain <= 1.02, gain


@given(benches(), st.integers(2, 4))
def test_of_a_crowd_that_has_come_all_or_none_are_drafted_for(bench: Bench, factor: int) -> None:
    num_old = len(bench.uids)
    for uid in range(100, 100 + factor * num_old):
        bench.choice.join(uid)
        bench.uids.append(uid)
    assert bench.choice.is_due
    before = bench.choice.num_drafting
    bench.choice.decide(bench.curve_of, bench.draft_s)
    assert bench.choice.num_drafting in (0, len(bench.uids), before)


def test_of_a_crowd_of_which_many_have_gone_some_may_be_drafted_for() -> None:
    bench = Bench(12, token_s=0.02, draft_s=lambda count: 0.3 * count)
    bench.acceptance = [0.9, 0.9, *[0.05] * 10]
    bench.run(20)
    for _ in range(40):
        for uid in bench.uids:
            bench.draft(uid)
    for uid in range(6, 12):
        bench.leave(uid)
    bench.run(8)
    assert bench.drafting == [0, 1]


def crowd_that_decodes_plainly() -> Bench:
    """Four requests, of which two alone would be drafted for."""
    bench = Bench(4, token_s=0.02, draft_s=lambda count: 0.1 if count <= 2 else 10.0)
    bench.run(600)
    for _ in range(8):
        for uid in bench.uids:
            bench.draft(uid)
    assert bench.drafting == []
    return bench


def test_fewer_requests_that_stay_few_are_drafted_for() -> None:
    bench = crowd_that_decodes_plainly()
    bench.leave(0)
    bench.leave(1)
    bench.run(20)
    assert bench.drafting == [2, 3]


def test_a_crowd_some_of_which_have_ended_a_moment_ago_is_judged_as_before() -> None:
    bench = crowd_that_decodes_plainly()
    num_switches = bench.choice.num_switches
    for uid in range(4, 40, 2):
        bench.leave(uid - 4)
        bench.leave(uid - 3)
        bench.run(3)
        bench.join(uid)
        bench.join(uid + 1)
        assert bench.drafting == []
        bench.run(20)
    assert bench.choice.num_switches == num_switches


def test_who_comes_when_all_have_ended_is_judged_at_once() -> None:
    bench = crowd_that_decodes_plainly()
    bench.leave_all()
    bench.join(4)
    assert bench.drafting == [4]


def test_where_it_is_not_drafted_any_more_neither_are_newcomers() -> None:
    bench = Bench(4, token_s=0.001, draft_s=lambda count: 0.1)
    bench.run(20)
    assert bench.choice.drafts_newcomers
    bench.draft_s = lambda count: 10.0
    bench.run(600)
    assert bench.drafting == []
    assert not bench.choice.drafts_newcomers


@pytest.mark.parametrize(("draft_s", "is_near"), [(1.4, True), (1.6, True), (5.0, False)])
def test_it_tells_whether_drafting_may_soon_be_faster(draft_s: float, is_near: bool) -> None:
    # As above, both are as good at 1.475 s.
    bench = Bench(1, token_s=0.0, draft_s=lambda count: draft_s)
    bench.acceptance = [0.6]
    for _ in range(100):
        bench.draft(0)
    bench.run(40)
    assert bench.choice.is_drafting_near == is_near


def test_the_first_of_a_crowd_are_judged_as_parts_of_it() -> None:
    bench = Bench(2, token_s=0.2, draft_s=lambda count: 0.1 * count)
    bench.run(40)
    assert bench.drafting == [0, 1], "two are drafted for"
    bench.leave_all()
    bench.choice.join(10, 11)
    bench.choice.note_joining(14)
    bench.choice.place(bench.curve_of, bench.draft_s)
    assert not bench.choice.drafts_newcomers
    assert bench.choice.num_drafting == 0


@pytest.mark.parametrize(("features_s", "is_drafted"), [(0.0, True), (0.5, False)])
def test_features_cost_only_those_that_draft(features_s: float, is_drafted: bool) -> None:
    bench = Bench(1, token_s=0.0, draft_s=lambda count: 1.3, promise=0.6)
    bench.acceptance = [0.6]
    bench.features_s = features_s
    for _ in range(100):
        bench.draft(0)
    bench.run(40)
    assert (bench.drafting == [0]) == is_drafted
