"""Whatever becomes of a drafter, requests go on plainly, and the reason is counted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    Features,
    Message,
    Need,
    Open,
    Proposals,
)
from dspine_cluster.types import SamplingParams
from dspine_cluster.verifier.attachments import Fallback
from tests.drafts import DraftItem
from tests.verifier.harness import (
    VOCAB_SIZE,
    LoopHarness,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)

PROMPTS = random_prompts(4, seed=2)
PASS_S = 0.1
LONG_PROMPT = [token % 250 for token in range(900)]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=1)


@pytest.fixture(scope="module")
def expected(target: TargetModel) -> list[list[int]]:
    return run(LoopHarness(target))


def run(harness: LoopHarness) -> list[list[int]]:
    return [result.token_ids for result in harness.generate([make_request(p) for p in PROMPTS])]


def right(expected: list[list[int]], item: DraftItem) -> list[int]:
    rest = expected[item.uid][item.output_index : item.output_index + 15]
    return rest + [0] * (15 - len(rest))


class Recorder(ScriptedChannel):
    """Answers like an oracle and keeps every message."""

    def __init__(self, expected: list[list[int]]) -> None:
        super().__init__(lambda item: right(expected, item))
        self.sent: list[tuple[Message, bool]] = []

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        self.sent.append((message, bulk))
        return super().send(message, bulk=bulk)


def test_without_a_drafter_every_round_is_plain_and_counted_absent(
    target: TargetModel, expected: list[list[int]]
) -> None:
    harness = LoopHarness(target)
    assert run(harness) == expected
    assert set(harness.loop.drafters.fallbacks) == {Fallback.ABSENT}


def test_a_misfit_is_counted_as_a_differing_fingerprint(
    target: TargetModel, expected: list[list[int]]
) -> None:
    harness = LoopHarness(target)
    harness.loop.drafters.note_misfit("unix:/other")
    assert run(harness) == expected
    assert set(harness.loop.drafters.fallbacks) == {Fallback.FINGERPRINT}


def test_a_silent_drafter_is_late_and_then_rests(
    target: TargetModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LoopHarness(target, channel=ScriptedChannel(lambda item: None))
    time_passes(monkeypatch, harness, lambda num_tokens: PASS_S)
    assert run(harness) == expected
    fallbacks = harness.loop.drafters.fallbacks
    assert fallbacks[Fallback.LATE] >= 5
    assert fallbacks[Fallback.RESTING] > 0


def test_a_resting_drafter_is_not_waited_for(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LoopHarness(target, channel=ScriptedChannel(lambda item: None))
    time_passes(monkeypatch, harness, lambda num_tokens: PASS_S)
    harness.generate([make_request(PROMPTS[0], max_tokens=200)])
    waited_s = harness.clock.now_s - 200 * PASS_S
    assert waited_s < 2.5, "a second's silence and five plain steps, then one of them in two seconds"


def test_a_drafter_lost_between_rounds_is_reported_and_counted(
    target: TargetModel, expected: list[list[int]]
) -> None:
    channel = ScriptedChannel(lambda item: None)
    harness = LoopHarness(target, channel=channel)
    for uid, prompt in enumerate(PROMPTS):
        harness.submit(uid, make_request(prompt))
    harness.step()
    channel.close()
    harness.run()
    assert [harness.results[uid].token_ids for uid in range(len(PROMPTS))] == expected
    assert harness.lost == ["scripted"]
    assert harness.loop.drafters.fallbacks[Fallback.LOST] == len(PROMPTS)


def test_requests_move_to_another_drafter_when_theirs_is_lost(
    target: TargetModel, expected: list[list[int]]
) -> None:
    first, second = Recorder(expected), Recorder(expected)
    harness = LoopHarness(target)
    harness.loop.drafters.connect("first", first)
    for uid, prompt in enumerate(PROMPTS):
        harness.submit(uid, make_request(prompt))
    harness.step()
    first.close()
    harness.loop.drafters.connect("second", second)
    harness.run()
    assert [harness.results[uid].token_ids for uid in range(len(PROMPTS))] == expected
    assert harness.loop.metrics.accepted_tokens_total > 0
    assert not second.positions, "every request closed what it opened"


def test_requests_move_away_from_a_drafter_that_rests(
    target: TargetModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, answering = ScriptedChannel(lambda item: None), Recorder(expected)
    harness = LoopHarness(target)
    time_passes(monkeypatch, harness, lambda num_tokens: PASS_S)
    harness.loop.drafters.connect("silent", silent)
    for uid, prompt in enumerate(PROMPTS):
        harness.submit(uid, make_request(prompt))
    harness.step()
    harness.loop.drafters.connect("answering", answering)
    harness.run()
    assert [harness.results[uid].token_ids for uid in range(len(PROMPTS))] == expected
    assert harness.loop.drafters.fallbacks[Fallback.RESTING] <= len(PROMPTS)
    assert harness.loop.metrics.accepted_tokens_total > 0
    assert not silent.positions, "the contexts at the drafter that rests are closed"


def test_a_busy_drafter_costs_one_plain_round(target: TargetModel, expected: list[list[int]]) -> None:
    class BusyOnce(ScriptedChannel):
        def __init__(self) -> None:
            super().__init__(lambda item: right(expected, item))
            self.refused = 0

        def _answer(self, item: DraftItem) -> None:
            if self.refused < 3:
                self.refused += 1
                self._inbox.append(Busy(np.array([[item.uid], [item.round]])))
            else:
                super()._answer(item)

    harness = LoopHarness(target, channel=BusyOnce())
    assert run(harness) == expected
    assert harness.loop.drafters.fallbacks == {Fallback.BUSY: 3}


def test_features_that_a_drafter_needs_are_sent_again(target: TargetModel, expected: list[list[int]]) -> None:
    class Forgetful(ScriptedChannel):
        """Loses everything it knows of a request once."""

        def __init__(self) -> None:
            super().__init__(lambda item: right(expected, item))
            self.forgotten: set[int] = set()

        def _answer(self, item: DraftItem) -> None:
            if item.uid not in self.forgotten:
                self.forgotten.add(item.uid)
                self.positions[item.uid].clear()
                self._inbox.append(Need(item.uid, 0, item.position))
                return
            assert self.positions[item.uid] == set(range(item.position))
            super()._answer(item)

    harness = LoopHarness(target, channel=Forgetful())
    assert run(harness) == expected
    assert harness.loop.drafters.fallbacks == {Fallback.NEED: len(PROMPTS)}


def long_harness(target: TargetModel) -> LoopHarness:
    return LoopHarness(
        target,
        pool_tokens=2048,
        max_model_len_tokens=1024,
        max_batch_tokens=1024,
        prefill_chunk_tokens=256,
    )


def features_sent(channel: Recorder) -> list[tuple[int, int, bool]]:
    """(first position, position after the last, whether it may be overtaken)"""
    return [(m.start, m.end, bulk) for m, bulk in channel.sent if isinstance(m, Features)]


def test_features_of_a_prompt_flow_while_it_is_being_prefilled(target: TargetModel) -> None:
    harness = long_harness(target)
    channel = Recorder([[0] * 40])
    harness.loop.drafters.connect("recorder", channel)
    harness.generate([make_request(LONG_PROMPT, max_tokens=4)])
    assert features_sent(channel)[:5] == [
        (0, 256, True),
        (256, 512, True),
        (512, 768, True),
        (768, 896, True),
        (896, 900, False),
    ]


def test_a_long_request_that_moves_sends_its_last_features_first_and_the_rest_at_a_pace(
    target: TargetModel,
) -> None:
    first, second = Recorder([[0] * 60]), Recorder([[0] * 60])
    harness = long_harness(target)
    harness.loop.drafters.connect("first", first)
    harness.submit(0, make_request(LONG_PROMPT, max_tokens=40))
    while not harness.results[0].outputs:
        harness.step()
    first.close()
    harness.loop.drafters.connect("second", second)
    harness.run()
    sent = [message for message, _ in second.sent]
    num_before = next(i for i, message in enumerate(sent) if isinstance(message, Draft))
    before = Recorder([])
    before.sent = second.sent[:num_before]
    tail = features_sent(before)
    assert all(not bulk for _, _, bulk in tail)
    assert sum(end - start for start, end, _ in tail) >= 512
    (end, bulk) = features_sent(second)[len(tail)][1:]
    assert (end, bulk) == (min(start for start, _, _ in tail), True)


def test_each_position_is_sent_once(target: TargetModel, expected: list[list[int]]) -> None:
    channel = Recorder(expected)
    run_with = LoopHarness(target, channel=channel)
    run(run_with)
    for uid in range(len(PROMPTS)):
        positions = [
            p
            for m, _ in channel.sent
            if isinstance(m, Features) and m.uid == uid
            for p in range(m.start, m.end)
        ]
        assert sorted(positions) == list(range(len(positions)))


def test_the_features_sent_are_those_of_the_committed_tokens(
    target: TargetModel, expected: list[list[int]]
) -> None:
    """Features do not depend on whether their token was decoded plainly, accepted or prefilled."""
    plain, drafted = Recorder([[-1] * 60] * len(PROMPTS)), Recorder(expected)
    plain.propose = lambda item: [0] * 15
    rows: list[dict[tuple[int, int], np.ndarray]] = []
    for channel in (plain, drafted):
        run(LoopHarness(target, channel=channel))
        rows.append(
            {
                (m.uid, m.start + i): row.view(np.float32)
                for m, _ in channel.sent
                if isinstance(m, Features)
                for i, row in enumerate(m.rows)
            }
        )
    shared = rows[0].keys() & rows[1].keys()
    assert len(shared) > 40
    for key in shared:
        np.testing.assert_allclose(rows[0][key], rows[1][key], atol=2e-4)


def test_a_request_that_ends_or_aborts_frees_its_context_at_the_drafter(
    target: TargetModel, expected: list[list[int]]
) -> None:
    channel = Recorder(expected)
    harness = LoopHarness(target, channel=channel)
    for uid, prompt in enumerate(PROMPTS):
        harness.submit(uid, make_request(prompt))
    harness.step()
    harness.loop.abort(0)
    harness.run()
    opened = sorted(m.uid for m, _ in channel.sent if isinstance(m, Open))
    closed = sorted(m.uid for m, _ in channel.sent if isinstance(m, Close))
    assert opened == closed == list(range(len(PROMPTS)))


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 2**31 - 1])
def test_a_drafter_that_proposes_ids_beyond_the_vocabulary_is_dropped(
    target: TargetModel, expected: list[list[int]], token: int
) -> None:
    harness = LoopHarness(target, channel=ScriptedChannel(lambda item: [token] * 15))
    assert run(harness) == expected
    assert harness.lost == ["scripted"]


def test_a_drafter_that_hides_its_distribution_is_dropped(target: TargetModel) -> None:
    class Hiding(ScriptedChannel):
        def _answer(self, item: DraftItem) -> None:
            row = np.zeros((1, 15), dtype=np.int32)
            bins = np.zeros((1, 15), np.int8)
            hidden = np.zeros((0, 15, 1), np.int32), np.zeros((0, 15, 1), np.float32)
            numbers = np.array([[item.uid], [item.round], [0]])
            self._inbox.append(Proposals(numbers, row, *hidden, bins, 0.0))

    harness = LoopHarness(target, channel=Hiding(lambda item: None))
    harness.generate([make_request(PROMPTS[0], sampling=SamplingParams(temperature=1.0))])
    assert harness.lost == ["scripted"]


class OneRoundBehind(ScriptedChannel):
    """Answers each request's previous question when the next one comes."""

    def __init__(self, expected: list[list[int]]) -> None:
        super().__init__(lambda item: right(expected, item))
        self.previous: dict[int, DraftItem] = {}

    def _answer(self, item: DraftItem) -> None:
        if item.uid in self.previous:
            super()._answer(self.previous[item.uid])
        self.previous[item.uid] = item


def test_replies_of_an_earlier_round_are_dropped(target: TargetModel, expected: list[list[int]]) -> None:
    harness = LoopHarness(target, channel=OneRoundBehind(expected))
    assert run(harness) == expected
    assert harness.loop.metrics.proposed_tokens_total == 0


def test_late_replies_tell_how_long_drafts_take_so_that_the_deadline_grows(
    target: TargetModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LoopHarness(target, channel=OneRoundBehind(expected))
    time_passes(monkeypatch, harness, lambda num_tokens: PASS_S)
    harness.submit(0, make_request(PROMPTS[0]))
    ends_s: list[float] = []
    while len(ends_s) < 6:
        harness.step()
        if len(harness.results[0].outputs) > len(ends_s):
            ends_s.append(harness.clock.now_s)
    waits_s = [after - before - PASS_S for before, after in pairwise(ends_s)]
    assert waits_s == sorted(waits_s)
    assert waits_s[0] < PASS_S < waits_s[1] < waits_s[-1]


def test_all_drafts_of_a_round_go_out_in_one_message(target: TargetModel, expected: list[list[int]]) -> None:
    channel = Recorder(expected)
    run(LoopHarness(target, channel=channel))
    first = next(m for m, _ in channel.sent if isinstance(m, Draft))
    assert len(first) == len(PROMPTS)
