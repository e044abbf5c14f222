"""When many requests lose their drafter at once, they move to another at a pace and decode plainly meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.page_hash import page_keys
from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.messages import Close, Draft, Features, Message, Open, Opened
from dspine_cluster.verifier.attachments import Fallback
from tests.verifier.harness import (
    FEATURE_SIZE,
    LoopHarness,
    ScriptedChannel,
    dense_config,
    make_request,
    random_prompts,
    random_target,
)

NUM_REQUESTS = 64
ROW_BYTES = 4 * FEATURE_SIZE
BUDGET_BYTES = 40 * ROW_BYTES
TAIL_TOKENS = 48


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
        return len({item.uid for m, _ in self.sent if isinstance(m, Draft) for item in m.items})

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        self.steps[-1].append((message, bulk))
        sent = super().send(message, bulk=bulk)
        if isinstance(message, Open) and self.cached_tokens:
            self._inbox[-1] = Opened(message.uid, message.attempt, [(0, self.cached_tokens)], 1000)
            self.positions[message.uid] = set(range(self.cached_tokens))
        return sent


def decoding_harness(target: TargetModel, drafter: Drafter, num_requests: int = NUM_REQUESTS) -> LoopHarness:
    """All requests decode with `drafter`."""
    drafting = DraftingConfig(attach_tokens=TAIL_TOKENS, repair_bytes_per_step=BUDGET_BYTES)
    harness = LoopHarness(
        target,
        drafting=drafting,
        pool_tokens=1 << 15,
        max_running_requests=num_requests,
        max_batch_tokens=2048,
    )
    harness.loop.drafters.connect("first", drafter)
    for uid, prompt in enumerate(random_prompts(num_requests, seed=3, max_length=4)):
        harness.submit(uid, make_request(prompt * 30, max_tokens=150))
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
            or (isinstance(message, Draft) and uid in [item.uid for item in message.items])
        ]
        draft_at = next(i for i, message in enumerate(order) if isinstance(message, Draft))
        draft = order[draft_at]
        assert isinstance(draft, Draft)
        anchor = next(item.position for item in draft.items if item.uid == uid)
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
    anchors = {uid: harness.loop.streams[uid].session.anchor_position for uid in range(2)}
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
