"""When rounds run, by a clock that the tests move: drafts take time, passes take time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import ClassVar

import pytest
from msgspec import structs

from dspine_cluster.core.batch_plan import BatchPlan
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.session import Session
from dspine_cluster.core.verify_length import (
    NO_LOAD,
    Blocks,
    FixedVerifyLength,
    Outcomes,
    PassLoad,
    VerifyLengthPolicy,
)
from dspine_cluster.models.target import TargetModel
from dspine_cluster.observability.metrics import VerifierMetrics
from dspine_cluster.transport.messages import Draft, Message
from dspine_cluster.verifier.attachments import Fallback
from dspine_cluster.verifier.drafters import Drafters
from dspine_cluster.verifier.pacing import Pacing
from dspine_cluster.verifier.wanted import Wanted
from tests.verifier.harness import (
    LoopHarness,
    Propose,
    ScriptedChannel,
    VirtualClock,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)

PASS_S = 0.1
PROMPTS = random_prompts(4, seed=2)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=1)


class SlowChannel(ScriptedChannel):
    """Answers `draft_s` after it was asked, by the clock."""

    def __init__(self, propose: Propose, clock: VirtualClock, draft_s: float) -> None:
        super().__init__(propose)
        self.asked: list[tuple[float, list[int]]] = []
        self._clock = clock
        self._draft_s = draft_s
        self._drafting: list[tuple[float, Message]] = []

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        sent = super().send(message, bulk=bulk)
        if isinstance(message, Draft):
            self.asked.append((self._clock(), message.uids.tolist()))
            self._drafting += [
                (self._clock() + self._draft_s, structs.replace(answer, draft_s=self._draft_s))
                for answer in self._inbox
            ]
            self._inbox = []
        return sent

    @property
    def next_answer_s(self) -> float:
        return min((at_s for at_s, _ in self._drafting), default=float("inf"))

    def receive(self) -> list[Message]:
        self._inbox += [message for at_s, message in self._drafting if at_s <= self._clock()]
        self._drafting = [(at_s, message) for at_s, message in self._drafting if at_s > self._clock()]
        return super().receive()


class Scripted(VerifyLengthPolicy):
    """Drafts for those it is told to, in halves if it is told so, and keeps what it is told."""

    wants_drafts = True
    drafts_newcomers = True
    has_halves = False
    gap_tokens = 64

    def __init__(self, drafted: Collection[int]) -> None:
        self.drafted = set(drafted)
        self.passes: list[list[int]] = []
        self.prefilled: list[int] = []
        self.drafts: list[tuple[int, float]] = []

    def choose(self, blocks: Blocks, load: PassLoad = NO_LOAD) -> list[int]:
        return list(blocks.num_proposals)

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        return self.drafted & set(uids)

    def prefill_room(self, most: int, num_blocks: int, waited_s: float) -> int:
        return self.gap_tokens

    def note_drafts(self, num_blocks: int, taken_s: float) -> None:
        self.drafts.append((num_blocks, round(taken_s, 6)))

    def note_pass(self, outcomes: Outcomes, load: PassLoad, taken_s: float) -> None:
        self.passes.append(list(outcomes.uids))
        self.prefilled.append(load.num_prefill_tokens)


class Bench:
    """A loop over a slow drafter that is always wrong."""

    def __init__(
        self,
        target: TargetModel,
        monkeypatch: pytest.MonkeyPatch,
        policy: VerifyLengthPolicy,
        *,
        draft_s: float,
        propose: Propose = lambda item: [0] * 15,
        channel: type[SlowChannel] = SlowChannel,
    ) -> None:
        self.harness = LoopHarness(target, policy=policy, prefill_chunk_tokens=128)
        time_passes(monkeypatch, self.harness, lambda num_tokens: PASS_S)
        self.channel = channel(propose, self.harness.clock, draft_s)
        self.harness.loop.drafters.connect("slow", self.channel)
        self.harness.loop.drafters.plain_step_s = 10.0  # so that even the first drafts are waited for

    def submit(self, uid: int, num_prompt: int = 0, max_tokens: int = 12) -> None:
        prompt = [1] * num_prompt if num_prompt else PROMPTS[uid % len(PROMPTS)]
        self.harness.submit(uid, make_request(prompt, max_tokens=max_tokens, ignore_eos=True))

    def run(self) -> None:
        """Step until all have ended."""
        while len(self.harness.loop.streams):
            self.step()

    def step(self) -> None:
        """A wait ends when drafts come or are late."""
        clock = self.harness.clock
        wait_s = self.harness.loop.step()
        if wait_s is not None:
            clock.now_s = min(clock.now_s + wait_s, max(clock.now_s, self.channel.next_answer_s))
            assert clock.now_s < float("inf")


def test_in_lockstep_all_rounds_run_together(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Scripted(range(3))
    bench = Bench(target, monkeypatch, policy, draft_s=0.05)
    for uid in range(3):
        bench.submit(uid)
    bench.run()
    assert [uids for uids in policy.passes if uids] == [[0, 1, 2]] * 11
    assert policy.drafts == [(3, 0.05)] * 10


def test_plain_requests_wait_for_nothing(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft takes two passes: the plain requests have both, and a third one with the drafted request, whose last
    token needs no draft."""
    policy = Scripted([0])
    bench = Bench(target, monkeypatch, policy, draft_s=0.19)
    for uid in range(3):
        bench.submit(uid, max_tokens=12 if uid else 4)
    bench.run()
    rounds = [uids for uids in policy.passes if uids]
    assert rounds == [[1, 2], [1, 2], [0, 1, 2]] * 2 + [[0, 1, 2]] + [[1, 2]] * 4
    assert not bench.harness.loop.drafters.fallbacks
    assert policy.drafts[0] == (1, 0.19), "while passes run, what counts is the drafter's own figure"


def test_a_request_that_is_not_drafted_for_sends_nothing(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted([])
    policy.drafts_newcomers = False
    bench = Bench(target, monkeypatch, policy, draft_s=0.05)
    bench.submit(0)
    bench.run()
    assert not bench.channel.asked
    assert not bench.channel.positions
    assert bench.harness.clock.now_s == pytest.approx(12 * PASS_S)


def test_what_was_computed_without_a_draft_is_sent_when_drafting_begins_again(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted([0])
    bench = Bench(target, monkeypatch, policy, draft_s=0.0)
    bench.submit(0, max_tokens=40)
    for _ in range(5):
        bench.step()
    policy.drafted = set()
    for _ in range(8):
        bench.step()
    num_sent = len(bench.channel.positions[0])
    policy.drafted = {0}
    for _ in range(3):
        bench.step()
    assert len(bench.channel.positions[0]) >= num_sent + 8
    assert len(bench.channel.asked) > 5
    bench.run()
    assert not bench.harness.loop.drafters.fallbacks[Fallback.LATE]


def test_a_prompt_that_fills_a_gap_does_so_in_small_chunks(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted([0])
    bench = Bench(target, monkeypatch, policy, draft_s=0.05)
    bench.submit(0, num_prompt=10)
    bench.step()
    bench.submit(1, num_prompt=200)
    bench.step()
    assert policy.prefilled == [10, 64], "a gap"
    bench.run()
    assert policy.passes[2] == [0]
    assert policy.prefilled[2] == 128, "with a round"


def test_a_prompt_goes_with_the_round_where_the_gap_is_left_empty(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted([0, 1])
    policy.gap_tokens = 0
    bench = Bench(target, monkeypatch, policy, draft_s=0.05)
    bench.submit(0, num_prompt=10)
    bench.step()
    bench.submit(1, num_prompt=100)
    bench.run()
    assert policy.passes[:2] == [[], [0]]
    assert policy.prefilled[:2] == [10, 64]
    assert not bench.harness.loop.drafters.fallbacks[Fallback.LATE]


def test_halves_take_turns(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Scripted(range(4))
    policy.has_halves = True
    bench = Bench(target, monkeypatch, policy, draft_s=PASS_S)
    for uid in range(4):
        bench.submit(uid)
    bench.run()
    rounds = [uids for uids in policy.passes if uids]
    assert rounds[:18] == [[0, 2], [1, 3]] * 9
    # After the prefill and a first wait nobody waits.
    assert bench.harness.clock.now_s == pytest.approx((2 + len(rounds)) * PASS_S)


def test_a_loop_that_wakes_for_nothing_does_not_look_at_every_request(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(target, monkeypatch, Scripted(range(3)), draft_s=0.05)
    for uid in range(3):
        bench.submit(uid)
    loop = bench.harness.loop
    while loop.step() is None:
        pass
    bench.harness.clock.now_s += 0.02
    with monkeypatch.context() as looking:
        looking.setattr(Drafters, "outstanding", lambda self: pytest.fail("nothing has come"))
        waits_s = [loop.step() for _ in range(3)]
    assert waits_s == [pytest.approx(10.0 - 0.02)] * 3, "until the drafts are late"
    bench.submit(3)
    assert loop.step() is None, "a prompt is computed meanwhile"
    bench.run()
    assert not loop.drafters.fallbacks[Fallback.LATE]


@pytest.mark.parametrize(
    ("drafted", "has_halves", "expected"),
    [
        pytest.param(4, False, 6, id="all_wait_for_the_same_drafts"),
        pytest.param(2, False, 2, id="some_wait_for_nothing_until_they_end"),
        pytest.param(4, True, 1, id="halves_wait_for_different_drafts_but_the_first"),
    ],
)
def test_a_pass_that_tells_how_long_to_rest_saves_the_step_that_would_find_that(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, drafted: int, has_halves: bool, expected: int
) -> None:
    policy = Scripted(range(drafted))
    policy.has_halves = has_halves
    bench = Bench(target, monkeypatch, policy, draft_s=0.05)
    loop = bench.harness.loop
    for uid in range(4):
        bench.submit(uid, max_tokens=8)
    num_rests = 0
    while len(loop.streams):
        num_passes = len(policy.passes)
        bench.step()
        rest_s = loop.rest_s() if len(policy.passes) > num_passes else 0.0
        if rest_s:
            assert loop.step() == rest_s
            num_rests += 1
    assert num_rests == expected


def test_a_loop_does_not_rest_while_a_request_waits(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(target, monkeypatch, Scripted(range(2)), draft_s=0.05)
    bench.submit(0)
    assert bench.harness.loop.step() is None
    assert bench.harness.loop.rest_s() > 0.0
    bench.submit(1)
    assert bench.harness.loop.rest_s() == 0.0


class Staggered(SlowChannel):
    """One draft of every round comes early."""

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        sent = super().send(message, bulk=bulk)
        if isinstance(message, Draft):
            at_s, answer = self._drafting[0]
            self._drafting[0] = at_s - 0.04, answer
        return sent


@pytest.fixture
def staggered(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Of three requests one has its draft, and the others still wait."""
    bench = Bench(target, monkeypatch, Scripted(range(3)), draft_s=0.05, channel=Staggered)
    for uid in range(3):
        bench.submit(uid)
    while bench.harness.loop.step() is None:
        pass
    bench.harness.clock.now_s += 0.02
    return bench


def test_a_loop_that_wakes_for_some_drafts_of_a_round_does_not_look_at_every_request(
    staggered: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, policy = staggered.harness.loop, staggered.harness.loop.policy
    assert isinstance(policy, Scripted)
    with monkeypatch.context() as looking:
        looking.setattr(Drafters, "outstanding", lambda self: pytest.fail("not all have come"))
        waits_s = [loop.step() for _ in range(3)]
    assert waits_s == [pytest.approx(10.0 - 0.02)] * 3, "until the others are late"
    assert loop.drafters.awaiting == ((2, 10.0),)
    staggered.harness.clock.now_s += 0.03
    assert loop.step() is None
    assert sorted(policy.passes[-1]) == [0, 1, 2]


def test_drafts_that_are_late_do_not_hold_up_those_that_came_before(staggered: Bench) -> None:
    loop, clock = staggered.harness.loop, staggered.harness.clock
    assert loop.step() is not None
    staggered.channel._drafting.clear()
    clock.now_s += 9.99
    assert loop.step() is None
    assert loop.drafters.fallbacks == {Fallback.LATE: 2}


def test_a_half_of_which_nobody_can_run_does_not_keep_the_other_waiting(target: TargetModel) -> None:
    """A request that has joined while others were waited for is not awaited, and yet it waits for its draft."""

    class Outstanding(Drafters):
        uids: ClassVar[set[int]] = set()

        def outstanding(self) -> dict[int, float]:
            return dict.fromkeys(self.uids, 1.0)

    policy = Scripted(range(3))
    policy.has_halves = True
    harness = LoopHarness(target)
    drafters = harness.loop.drafters
    drafters.__class__ = Outstanding
    pacing = Pacing(policy, drafters, harness.clock, VerifierMetrics())
    first, second, joining = (Session(uid, make_request([1, 2, 3]), arrival=uid) for uid in range(3))
    pacing.ask(Wanted([first, second], [0, 1], [5, 5]), [])
    assert pacing.ready([first, second]) == [first]
    Outstanding.uids = {0}
    pacing.ask(Wanted([joining], [2], [5]), [])
    pacing.forget([first])
    Outstanding.uids = {2}
    assert pacing.ready([second, joining]) == [second]


def test_a_half_that_gives_way_leaves_its_turn_to_the_other(target: TargetModel) -> None:
    class Halves(FixedVerifyLength):
        @property
        def has_halves(self) -> bool:
            return True

    channel = ScriptedChannel(lambda item: [0])
    harness = LoopHarness(target, channel=channel, policy=Halves(1), pool_tokens=288)
    prompts = [list(range(10)), list(range(12))]
    harness.generate([make_request(prompt, max_tokens=160, ignore_eos=True) for prompt in prompts])
    assert harness.loop.metrics.preemptions_total == 1


def test_halves_end_when_the_policy_says_so(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Scripted(range(4))
    policy.has_halves = True
    bench = Bench(target, monkeypatch, policy, draft_s=PASS_S)
    for uid in range(4):
        bench.submit(uid)
    while len(policy.passes) < 8:
        bench.step()
    policy.has_halves = False
    bench.run()
    assert policy.passes[6:10] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert policy.passes[11:14] == [[0, 1, 2, 3]] * 3


def test_a_half_that_has_ended_leaves_the_other_alone(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted(range(4))
    policy.has_halves = True
    bench = Bench(target, monkeypatch, policy, draft_s=PASS_S)
    for uid in range(4):
        bench.submit(uid, max_tokens=4 if uid % 2 else 12)
    bench.run()
    assert policy.passes[-1] in ([0], [2], [0, 2])


@pytest.mark.parametrize(("pass_s", "token_s", "has_halves"), [(0.02, 0.002, True), (0.4, 0.0, False)])
def test_costs_decide_about_halves_and_text_stays_the_same(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, pass_s: float, token_s: float, has_halves: bool
) -> None:
    """Passes that grow with their tokens overlap with drafts; where half a pass takes as long as a whole one they do
    not."""
    prompts = random_prompts(6, seed=5)
    requests = [make_request(prompt, max_tokens=60, ignore_eos=True) for prompt in prompts]
    plain = [result.token_ids for result in LoopHarness(target).generate(requests)]
    policy = DynamicVerifyLength(Random(0))
    bench = Bench(
        target,
        monkeypatch,
        policy,
        draft_s=0.2,
        propose=lambda item: (plain[item.uid][item.output_index :] + [0] * 15)[:15],
    )
    time_passes(monkeypatch, bench.harness, lambda num_tokens: pass_s + token_s * num_tokens)
    was_on = False
    for uid, request in enumerate(requests):
        bench.harness.submit(uid, request)
    while len(bench.harness.loop.streams):
        bench.step()
        was_on |= policy.has_halves
    assert was_on is has_halves
    assert [bench.harness.results[uid].token_ids for uid in range(len(requests))] == plain


def test_the_policy_is_told_how_many_join_soon(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for eight of ten; a pass holds two or three of their prompts."""

    class Watching(Scripted):
        """Decodes all plainly, and counts who decodes and who joins."""

        def __init__(self) -> None:
            super().__init__(())
            self.told: list[tuple[int, int]] = []
            self._num_joining = 0

        def note_joining(self, num_requests: int) -> None:
            self._num_joining = num_requests

        def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
            self.told.append((len(uids), self._num_joining))
            return ()

    policy = Watching()
    bench = Bench(target, monkeypatch, policy, draft_s=0.1)
    for uid in range(10):
        bench.submit(uid, num_prompt=90)
    for _ in range(6):
        bench.step()
    assert all(num_decoding + num_joining == 8 for num_decoding, num_joining in policy.told)
    assert policy.told[0][1] > 0, "the first pass does not hold all prompts"
    assert policy.told[-1] == (8, 0)


def test_who_was_preempted_does_not_join_anew(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy knows it already."""
    bench = Bench(target, monkeypatch, Scripted(()), draft_s=0.1)
    for uid in range(4):
        bench.submit(uid, num_prompt=20)
    streams = bench.harness.loop.streams
    assert streams.num_joining == 4
    while len(streams.decoding) < 4:
        bench.step()
    assert streams.num_joining == 0
    streams.apply(BatchPlan(preempted=streams.decoding[:2]))
    assert (len(streams.waiting), streams.num_joining) == (2, 0)
