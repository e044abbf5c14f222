"""When many requests lose their drafter at once, they move to another at a pace and decode plainly meanwhile."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from statistics import median

import pytest

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.page_hash import page_keys
from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.messages import Close, Draft, Features, Message, Open, Opened, Proposals
from dspine_cluster.verifier.attachments import Fallback
from tests.verifier.harness import (
    FEATURE_SIZE,
    LoopHarness,
    ScriptedChannel,
    VirtualClock,
    dense_config,
    make_request,
    random_prompts,
    random_target,
    time_passes,
)

NUM_REQUESTS = 64
ROW_BYTES = 4 * FEATURE_SIZE
BUDGET_BYTES = 40 * ROW_BYTES
TAIL_TOKENS = 48
PLAIN_S = 0.0125
VERIFIED_TOKEN_S = 7e-5
DRAFT_S = 0.006
ROW_S = 5e-5
NUM_BEFORE, NUM_AFTER = 10, 40


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(dense_config(), seed=1)


class Drafter(ScriptedChannel):
    """Proposes what is always wrong, and keeps what it was sent, step by step."""

    def __init__(self, cached_tokens: int = 0) -> None:
        super().__init__(lambda item: [0] * 15)
        self.steps: list[list[tuple[Message, bool]]] = [[]]
        self.cached_tokens = cached_tokens

    @property
    def sent(self) -> list[tuple[Message, bool]]:
        return [message for step in self.steps for message in step]

    @property
    def num_drafted(self) -> int:
        """Requests that it was asked to draft for."""
        return len({uid for m, _ in self.sent if isinstance(m, Draft) for uid in m.uids.tolist()})

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        self.steps[-1].append((message, bulk))
        sent = super().send(message, bulk=bulk)
        if isinstance(message, Open) and self.cached_tokens:
            self._inbox[-1] = Opened(message.uid, message.attempt, [(0, self.cached_tokens)], 1000)
            self.positions[message.uid] = set(range(self.cached_tokens))
        return sent


def make_harness(
    target: TargetModel, num_requests: int = NUM_REQUESTS, budget_bytes: int = BUDGET_BYTES
) -> LoopHarness:
    return LoopHarness(
        target,
        drafting=DraftingConfig(attach_tokens=TAIL_TOKENS, repair_bytes_per_step=budget_bytes),
        pool_tokens=1 << 15,
        max_running_requests=num_requests,
        max_batch_tokens=2048,
    )


def submit_all(harness: LoopHarness, num_requests: int = NUM_REQUESTS) -> None:
    for uid, prompt in enumerate(random_prompts(num_requests, seed=3, max_length=4)):
        harness.submit(uid, make_request(prompt * 30, max_tokens=150))


def decoding_harness(target: TargetModel, drafter: Drafter, num_requests: int = NUM_REQUESTS) -> LoopHarness:
    """All requests decode with `drafter`."""
    harness = make_harness(target, num_requests)
    harness.loop.drafters.connect("first", drafter)
    submit_all(harness, num_requests)
    while any(len(result.outputs) < 2 for result in harness.results.values()):
        harness.step()
    return harness


def lose(harness: LoopHarness, first: Drafter, second: Drafter) -> None:
    first.close()
    harness.loop.drafters.connect("second", second)


def test_no_step_sends_more_old_features_than_its_budget_and_all_requests_go_on(target: TargetModel) -> None:
    first, second = Drafter(), Drafter()
    harness = decoding_harness(target, first)
    lose(harness, first, second)
    lengths = {uid: len(result.token_ids) for uid, result in harness.results.items()}
    num_steps = 0
    while second.num_drafted < NUM_REQUESTS:
        second.steps.append([])
        assert harness.step()
        num_steps += 1
        now = {uid: len(result.token_ids) for uid, result in harness.results.items()}
        assert all(now[uid] > lengths[uid] for uid in now), "every request decodes in every step"
        fresh_bytes = ROW_BYTES * sum(now[uid] - lengths[uid] for uid in now)
        lengths = now
        step_bytes = sum(m.num_bytes for m, _ in second.steps[-1] if isinstance(m, Features))
        assert step_bytes <= BUDGET_BYTES + fresh_bytes
        key_bytes = [len(m.page_keys) for m, _ in second.steps[-1] if isinstance(m, Open)]
        assert sum(key_bytes[:-1]) < BUDGET_BYTES
    assert num_steps >= NUM_REQUESTS * TAIL_TOKENS * ROW_BYTES // BUDGET_BYTES // 2
    assert harness.loop.drafters.fallbacks[Fallback.JOINING] > NUM_REQUESTS
    assert set(harness.loop.drafters.fallbacks) <= {Fallback.LOST, Fallback.JOINING}


@dataclass
class Batch:
    """Drafts that are made together."""

    start_s: float
    answers: dict[int, Message] = field(default_factory=dict)
    """By uid: a request's newest draft replaces older ones until the batch has begun."""


class Worker(Drafter):
    """Takes time, as a thread of its own would: for each row of features and for each batch of drafts."""

    def __init__(self, clock: VirtualClock, *, delay_s: float = 0.0) -> None:
        """`delay_s` is what the first batch takes longer than others; after infinity nothing is drafted."""
        super().__init__()
        self._clock = clock
        self._delay_s = delay_s
        self._free_at_s = clock.now_s
        self._batches: deque[Batch] = deque()
        self._opened: deque[tuple[float, Message]] = deque()
        self.is_stopped = False

    @property
    def next_answer_s(self) -> float:
        if self.is_stopped or self.is_lost:
            return inf
        ends_s = [time_s for time_s, _ in self._opened] + [batch.start_s + DRAFT_S for batch in self._batches]
        return min(ends_s, default=inf)

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        now_s = self._clock.now_s
        self._free_at_s = max(self._free_at_s, now_s)
        has_waiting_batch = bool(self._batches) and self._batches[-1].start_s > now_s
        if isinstance(message, Features):
            work_s = ROW_S * message.num_bytes / ROW_BYTES
            self._free_at_s += work_s
            if has_waiting_batch:
                self._batches[-1].start_s += work_s
        elif isinstance(message, Draft) and not has_waiting_batch:
            self._batches.append(Batch(self._free_at_s + self._delay_s))
            self._free_at_s += self._delay_s + DRAFT_S
            self._delay_s = 0.0
        sent = super().send(message, bulk=bulk)
        for answer in self._inbox:
            if isinstance(answer, Proposals):
                self._batches[-1].answers[int(answer.uids[0])] = answer
            else:
                self._opened.append((self._free_at_s, answer))
        self._inbox.clear()
        return sent

    def receive(self) -> list[Message]:
        while self.next_answer_s <= self._clock.now_s:
            if self._opened and self._opened[0][0] <= self._clock.now_s:
                self._inbox.append(self._opened.popleft()[1])
            else:
                self._inbox += self._batches.popleft().answers.values()
        return super().receive()


def timed_step_s(harness: LoopHarness, drafters: list[Worker]) -> float:
    """Run one pass, the wait for drafts before it included; how long both took."""
    started_s = harness.clock.now_s
    while (wait_s := harness.loop.step()) is not None:
        answer_s = min(drafter.next_answer_s for drafter in drafters)
        harness.clock.now_s = min(harness.clock.now_s + wait_s, answer_s)
    return harness.clock.now_s - started_s


@pytest.mark.parametrize("delay_s", [0.0, 0.9, inf], ids=["quick", "slow at first", "silent"])
@pytest.mark.parametrize("stops", [False, True], ids=["killed", "stopped"])
def test_no_step_takes_more_than_twice_the_median(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, stops: bool, delay_s: float
) -> None:
    """In virtual time, with the ratios of drafts, features, plain steps and full blocks on a GPU."""
    harness = make_harness(target, budget_bytes=4 * BUDGET_BYTES)
    time_passes(monkeypatch, harness, lambda num_tokens: PLAIN_S + VERIFIED_TOKEN_S * num_tokens)
    first = Worker(harness.clock)
    harness.loop.drafters.connect("first", first)
    submit_all(harness)
    while len(harness.loop.streams.decoding) < NUM_REQUESTS:
        timed_step_s(harness, [first])
    steps_s = [timed_step_s(harness, [first]) for _ in range(NUM_BEFORE)]
    assert harness.loop.metrics.verified_tokens_total > NUM_BEFORE / 2 * 15 * NUM_REQUESTS
    second = Worker(harness.clock, delay_s=delay_s)
    harness.loop.drafters.connect("second", second)
    if stops:
        first.is_stopped = True
    else:
        first.close()
    for number in range(NUM_AFTER):
        before = {uid: len(result.token_ids) for uid, result in harness.results.items()}
        steps_s.append(timed_step_s(harness, [first, second]))
        assert steps_s[-1] <= 2 * median(steps_s[:NUM_BEFORE]), f"step {number} after the loss"
        now = {uid: len(result.token_ids) for uid, result in harness.results.items()}
        assert all(now[uid] > before[uid] for uid in now), "every request decodes in every step"
    assert second.num_drafted == NUM_REQUESTS


def test_the_last_features_come_first_and_the_rest_follows_until_all_are_there(target: TargetModel) -> None:
    first, second = Drafter(), Drafter()
    harness = decoding_harness(target, first, num_requests=8)
    lose(harness, first, second)
    while len(harness.results[0].token_ids) < 120:
        harness.step()
    for uid in range(8):
        order = [
            message
            for message, _ in second.sent
            if (isinstance(message, Features) and message.uid == uid)
            or (isinstance(message, Draft) and uid in message.uids)
        ]
        draft_at = next(i for i, message in enumerate(order) if isinstance(message, Draft))
        draft = order[draft_at]
        assert isinstance(draft, Draft)
        anchor = int(draft.positions[draft.uids == uid][0])
        before = {p for m in order[:draft_at] if isinstance(m, Features) for p in range(m.start, m.end)}
        tail = set(range(max(0, anchor - TAIL_TOKENS), anchor))
        assert tail <= before
        counts = Counter(p for m in order if isinstance(m, Features) for p in range(m.start, m.end))
        assert set(counts.values()) == {1}, "no position is sent twice"
        assert counts.keys() >= set(range(anchor)), "in the end nothing is missing"


def test_a_drafter_that_has_a_request_s_context_gets_only_the_rest(target: TargetModel) -> None:
    first, second = Drafter(), Drafter(cached_tokens=16)
    harness = decoding_harness(target, first, num_requests=8)
    lose(harness, first, second)
    harness.run()
    for uid in range(8):
        sent = {
            p
            for m, _ in second.sent
            if isinstance(m, Features) and m.uid == uid
            for p in range(m.start, m.end)
        }
        assert min(sent) == 16
        assert sent == set(range(16, max(sent) + 1))


def test_an_answer_to_an_earlier_attempt_is_not_believed(target: TargetModel) -> None:
    class Stale(Drafter):
        def send(self, message: Message, *, bulk: bool = False) -> bool:
            sent = super().send(message, bulk=bulk)
            if isinstance(message, Open):
                self._inbox.insert(0, Opened(message.uid, message.attempt + 1, [(0, 30)], 1000))
            return sent

    first, second = Drafter(), Stale()
    harness = decoding_harness(target, first, num_requests=2)
    lose(harness, first, second)
    harness.run()
    starts = [m.start for m, _ in second.sent if isinstance(m, Features)]
    assert min(starts) == 0


def test_a_drafter_that_never_answers_an_open_counts_as_late_and_rests(target: TargetModel) -> None:
    class Mute(Drafter):
        def send(self, message: Message, *, bulk: bool = False) -> bool:
            sent = super().send(message, bulk=bulk)
            self._inbox.clear()
            return sent

    first, second = Drafter(), Mute()
    harness = decoding_harness(target, first, num_requests=2)
    lose(harness, first, second)
    for _ in range(100):
        harness.clock.now_s += 0.1
        harness.step()
    fallbacks = harness.loop.drafters.fallbacks
    assert fallbacks[Fallback.LATE] >= 5
    assert fallbacks[Fallback.RESTING] > 0


def test_only_the_context_that_a_drafter_keeps_is_sent(target: TargetModel) -> None:
    class Short(Drafter):
        def send(self, message: Message, *, bulk: bool = False) -> bool:
            sent = super().send(message, bulk=bulk)
            if isinstance(message, Open):
                self._inbox[-1] = Opened(message.uid, message.attempt, [], 20)
            return sent

    first, second = Drafter(), Short()
    harness = decoding_harness(target, first, num_requests=2)
    anchors = {uid: harness.loop.streams.by_uid[uid].session.anchor_position for uid in range(2)}
    lose(harness, first, second)
    harness.run()
    for uid, anchor in anchors.items():
        assert min(m.start for m, _ in second.sent if isinstance(m, Features) and m.uid == uid) >= anchor - 20


def test_keys_name_the_pages_of_the_prompt_when_it_opens_and_of_the_output_when_it_closes(
    target: TargetModel,
) -> None:
    drafter = Drafter()
    harness = LoopHarness(target, channel=drafter)
    prompt = list(range(40))
    (result,) = harness.generate([make_request(prompt, max_tokens=60)])
    (opened,) = [m for m, _ in drafter.sent if isinstance(m, Open)]
    (closed,) = [m for m, _ in drafter.sent if isinstance(m, Close)]
    root = harness.loop._draft_root_of(make_request(prompt))
    num_full = (40 + len(result.token_ids) - 1) // 16
    assert opened.page_keys == b"".join(page_keys(prompt, root))
    assert opened.page_keys + closed.page_keys == b"".join(
        page_keys([*prompt, *result.token_ids], root)[:num_full]
    )


def test_cancelling_at_any_step_closes_what_was_opened_at_every_drafter(target: TargetModel) -> None:
    """In the queue, in prefill, before a drafter has answered, while old features are under way, and in rounds."""
    for num_steps in range(12):
        first, second = Drafter(), Drafter()
        harness = LoopHarness(
            target,
            drafting=DraftingConfig(attach_tokens=TAIL_TOKENS, repair_bytes_per_step=BUDGET_BYTES),
            max_running_requests=2,
            max_batch_tokens=80,
        )
        harness.loop.drafters.connect("first", first)
        for uid, prompt in enumerate(random_prompts(3, seed=3, max_length=4)):
            harness.submit(uid, make_request(prompt * 30, max_tokens=20))
        for number in range(num_steps):
            if number == 6:
                lose(harness, first, second)
            harness.step()
        for uid in range(3):
            harness.loop.abort(uid)
        harness.loop.streams.check_integrity()
        assert not harness.loop.streams.running
        assert not (second if num_steps > 6 else first).positions
