"""The drafter loop answers every draft with what the drafter says of that block alone, and survives its verifiers."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine_cluster.drafter.context_rows import DraftPages
from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner, Drafts
from dspine_cluster.errors import ChannelClosedError, EngineStoppedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    Features,
    Message,
    Need,
    Open,
    Opened,
    Proposals,
    join_keys,
    split_keys,
)
from tests.drafter.harness import (
    VERIFIER,
    LoopBench,
    assert_proposals,
    expected_output,
    features_of,
    item_of,
)
from tests.drafts import busy_rounds, draft_of
from tests.models.drafter_cases import SLIDING, Block, random_drafter, small_config


def is_dropped(verifier: Channel) -> bool:
    try:
        while verifier.receive():
            pass
    except ChannelClosedError:
        return True
    return False


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.8, "seed": 11}])
def test_a_batch_is_answered_with_what_each_block_gives_alone(changes: dict[str, Any]) -> None:
    bench = LoopBench()
    blocks = [bench.block(position, seed=position) for position in (0, 1, 16, 40)]
    (proposals,) = bench.draft(bench.connect(), blocks, **changes)
    assert proposals.uids.tolist() == [0, 1, 2, 3]
    for uid, block in enumerate(blocks):
        assert_proposals(proposals, uid, bench.drafter, block, item_of(block, uid, **changes))
    assert proposals.draft_s > 0.0
    assert bench.loop.counters.num_batches == 1


def test_distributions_are_told_of_those_that_sample_without_a_seed() -> None:
    bench = LoopBench()
    blocks = [bench.block(20 + uid) for uid in range(4)]
    verifier = bench.connect()
    bench.draft(verifier, blocks)
    options: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {},
        {"temperature": 0.7},
        {"temperature": 1.0, "seed": 3},
    ]
    items = [item_of(block, uid, **own) for uid, (block, own) in enumerate(zip(blocks, options, strict=True))]
    (proposals,) = bench.turn(verifier, draft_of(items))
    assert proposals.is_sampled.tolist() == [1, 0, 1, 0]
    first_row = [
        expected_output(bench.drafter, blocks[uid], items[uid]).candidates[0, 0].tolist() for uid in (0, 2)
    ]
    assert [sorted(row[0].tolist()) for row in proposals.candidates] == [sorted(row) for row in first_row]
    assert (np.abs(proposals.probs.sum(2) - 1.0) < 1e-5).all()
    assert proposals.candidates[:, :, 0].tolist() == proposals.tokens[[0, 2]].tolist()


def test_unseeded_proposals_are_drawn_from_the_distribution_that_goes_with_them() -> None:
    bench = LoopBench()
    block = bench.block(20)
    verifier = bench.connect()
    bench.draft(verifier, [block])
    item = item_of(block, 0, temperature=1.0, num_proposals=1)
    counts: dict[int, int] = {}
    for _ in range(300):
        (proposals,) = bench.turn(verifier, draft_of([item]))
        token = int(proposals.tokens[0, 0])
        counts[token] = counts.get(token, 0) + 1
    expected = dict(zip(proposals.candidates[0, 0].tolist(), proposals.probs[0, 0].tolist(), strict=True))
    assert abs(sum(expected.values()) - 1.0) < 1e-5
    distance = sum(abs(counts.get(token, 0) / 300 - q) for token, q in expected.items()) / 2
    assert distance < 0.12
    assert set(counts) <= set(expected)


@given(cuts=st.sets(st.integers(1, 49), max_size=5), data=st.data())
@settings(max_examples=20)
def test_features_may_come_in_any_order_of_ranges(cuts: set[int], data: st.DataObject) -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(50)
    edges = [0, *sorted(cuts), 50]
    ranges = data.draw(st.permutations(list(itertools.pairwise(edges))))
    messages = [features_of(block, 5, start, end) for start, end in ranges]
    (proposals,) = bench.turn(verifier, Open(5), *messages, draft_of([item_of(block, 5)]))
    assert_proposals(proposals, 0, bench.drafter, block, item_of(block, 5))


def test_a_context_without_its_beginning_is_used_as_the_suffix_it_is() -> None:
    bench = LoopBench()
    block = bench.block(50, start=23)
    (proposals,) = bench.draft(bench.connect(), [block])
    assert_proposals(proposals, 0, bench.drafter, block, item_of(block, 0))


def test_a_suffix_grows_when_older_features_follow() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    bench.draft(verifier, [bench.block(50, start=23)])
    whole = bench.block(50)
    (proposals,) = bench.turn(verifier, features_of(whole, 0, 0, 23), draft_of([item_of(whole, 0)]))
    assert_proposals(proposals, 0, bench.drafter, whole, item_of(whole, 0))


def test_rounds_follow_each_other_with_only_the_new_features() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    whole = bench.block(60)
    bench.turn(verifier, Open(0), features_of(whole, 0, 0, 10))
    for start, end in ((10, 13), (13, 14), (14, 30), (30, 45)):
        block = bench.block(60)
        block = type(block)(whole.features[:end], anchor=end)
        item = item_of(block, 0, round=end)
        (proposals,) = bench.turn(verifier, features_of(whole, 0, start, end), draft_of([item]))
        assert_proposals(proposals, 0, bench.drafter, block, item)


def keys_of(seed: int, num_pages: int, start: int = 0) -> bytes:
    """Of the first pages of the block with this seed."""
    return join_keys([bytes([seed, number]) * 8 for number in range(start, num_pages)])


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.8, "seed": 11}])
def test_a_warm_context_gives_the_proposals_of_a_cold_one(changes: dict[str, Any]) -> None:
    bench = LoopBench()
    verifier = bench.connect()
    whole = bench.block(60)
    item = item_of(whole, 1, **changes)
    (cold,) = bench.turn(verifier, Open(1, keys_of(0, 3)), features_of(whole, 1, 0, 60), draft_of([item]))
    bench.turn(verifier, Close(1))
    item = item_of(whole, 2, **changes)
    (warm,) = bench.turn(verifier, Open(2, keys_of(0, 3)), features_of(whole, 2, 48, 60), draft_of([item]))
    assert [opened.ranges for opened in bench.opened] == [[], [(0, 48)]]
    assert_proposals(warm, 0, bench.drafter, whole, item)
    assert warm.tokens.tolist() == cold.tokens.tolist()
    assert warm.bins.tolist() == cold.bins.tolist()


def test_what_a_request_generated_serves_its_next_turn_at_any_verifier() -> None:
    bench = LoopBench()
    first, second = bench.connect(), bench.connect()
    whole = bench.block(100)
    bench.turn(first, Open(1, keys_of(0, 2)), features_of(whole, 1, 0, 70))
    bench.turn(first, Close(1, keys_of(0, 4, start=2)))
    item = item_of(whole, 1)
    (need,) = bench.turn(second, Open(1, keys_of(0, 6)), draft_of([item]))
    assert bench.opened[-1].ranges == [(0, 64)]
    assert need == Need(1, 64, 100)
    (proposals,) = bench.turn(second, features_of(whole, 1, 64, 100), draft_of([item]))
    assert_proposals(proposals, 0, bench.drafter, whole, item)


def test_a_lost_channel_leaves_what_its_requests_had_named_for_others() -> None:
    bench = LoopBench()
    first, second = bench.connect(), bench.connect()
    whole = bench.block(50)
    bench.turn(first, Open(1, keys_of(0, 3)), features_of(whole, 1, 0, 50))
    first.close()
    item = item_of(whole, 1)
    (proposals,) = bench.turn(second, Open(1, keys_of(0, 3)), features_of(whole, 1, 48, 50), draft_of([item]))
    assert_proposals(proposals, 0, bench.drafter, whole, item)


def test_requests_that_run_together_share_pages_and_differ_where_they_differ() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    one, other = bench.block(50, seed=1), bench.block(50, seed=2)
    same = torch.cat((one.features[:32], other.features[32:]))
    other = Block(same, anchor=other.anchor)
    (proposals,) = bench.turn(
        verifier,
        Open(1, keys_of(1, 3)),
        features_of(one, 1, 0, 50),
        Open(2, keys_of(1, 2) + keys_of(2, 3, start=2)),
        features_of(other, 2, 32, 50),
        draft_of([item_of(one, 1), item_of(other, 2)]),
    )
    for row, block in enumerate((one, other)):
        assert_proposals(proposals, row, bench.drafter, block, item_of(block, row + 1))
    assert bench.loop.contexts.num_pages - bench.loop.contexts.num_free_pages == 4 + 2


def test_cached_pages_make_room_for_requests_and_what_is_left_of_them_still_serves() -> None:
    bench = LoopBench(num_pages=6)
    verifier = bench.connect()
    old, new = bench.block(64, seed=1), bench.block(64, seed=2)
    bench.turn(verifier, Open(1, keys_of(1, 4)), features_of(old, 1, 0, 64), Close(1))
    (proposals,) = bench.turn(verifier, Open(2), features_of(new, 2, 0, 64), draft_of([item_of(new, 2)]))
    assert_proposals(proposals, 0, bench.drafter, new, item_of(new, 2))
    bench.turn(verifier, Close(2))
    assert bench.loop.contexts.num_evictions == 2
    bench.turn(verifier, Open(3, keys_of(1, 4)))
    assert bench.opened[-1].ranges == [(0, 32)]
    (need,) = bench.turn(verifier, draft_of([item_of(old, 3)]))
    assert need == Need(3, 32, 64)
    (proposals,) = bench.turn(verifier, features_of(old, 3, 32, 64), draft_of([item_of(old, 3)]))
    assert_proposals(proposals, 0, bench.drafter, old, item_of(old, 3))


def test_the_answer_to_an_open_tells_the_attempt_and_how_much_context_is_kept() -> None:
    bench = LoopBench(max_context_tokens=40)
    bench.turn(bench.connect(), Open(3, attempt=9))
    assert bench.opened == [Opened(3, 9, [], 40)]


def test_prefixes_that_a_drafter_holds_are_published() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(40)
    events = bench.loop.contexts.prefix_events
    bench.turn(verifier, Open(1, keys_of(0, 2)), features_of(block, 1, 16, 40))
    assert events.take() == (set(), set())
    bench.turn(verifier, features_of(block, 1, 0, 16), Close(1))
    assert events.take() == (set(split_keys(keys_of(0, 2))), set())


def test_missing_features_are_asked_for_by_range() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(50)
    (need,) = bench.turn(verifier, Open(4), draft_of([item_of(block, 4)]))
    assert need == Need(4, 0, 50)
    (need,) = bench.turn(verifier, features_of(block, 4, 0, 33), draft_of([item_of(block, 4)]))
    assert need == Need(4, 33, 50)
    (proposals,) = bench.turn(verifier, features_of(block, 4, 33, 50), draft_of([item_of(block, 4)]))
    assert_proposals(proposals, 0, bench.drafter, block, item_of(block, 4))


def test_a_request_that_lacks_features_does_not_hold_up_the_others() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(20)
    answers = bench.turn(
        verifier,
        Open(1),
        Open(2),
        features_of(block, 2, 0, 20),
        draft_of([item_of(block, 1), item_of(block, 2)]),
    )
    assert Need(1, 0, 20) in answers
    (proposals,) = [answer for answer in answers if isinstance(answer, Proposals)]
    assert proposals.uids.tolist() == [2]


def test_verifiers_share_a_batch_and_their_uids_do_not_meet() -> None:
    bench = LoopBench()
    verifiers = [bench.connect(), bench.connect()]
    blocks = [bench.block(20, seed=seed) for seed in (1, 2)]
    for verifier, block in zip(verifiers, blocks, strict=True):
        for message in (Open(9), features_of(block, 9, 0, 20), draft_of([item_of(block, 9)])):
            verifier.send(message)
    bench.turn(bench.connect())
    assert bench.loop.counters.num_batches == 1
    for verifier, block in zip(verifiers, blocks, strict=True):
        opened, proposals = verifier.receive()
        assert isinstance(opened, Opened)
        assert isinstance(proposals, Proposals)
        assert_proposals(proposals, 0, bench.drafter, block, item_of(block, 9))


def test_more_blocks_than_a_batch_holds_are_drafted_one_batch_after_the_other() -> None:
    bench = LoopBench(max_batch_blocks=2)
    answers = bench.draft(bench.connect(), [bench.block(5)] * 5)
    assert [answer.uids.tolist() for answer in answers] == [[0, 1], [2, 3], [4]]


def test_more_blocks_than_may_wait_are_refused_as_busy() -> None:
    bench = LoopBench(max_batch_blocks=2, max_queued_blocks=3)
    busy, *proposals = bench.draft(bench.connect(), [bench.block(5)] * 5)
    assert busy_rounds(busy) == [(3, 7), (4, 7)]
    assert [answer.uids.tolist() for answer in proposals] == [[0, 1], [2]]


def test_a_newer_draft_replaces_one_that_still_waits() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(5)
    bench.turn(verifier, Open(0), features_of(block, 0, 0, 5))
    drafts: list[Message] = [draft_of([item_of(block, 0, round=number)]) for number in (1, 2)]
    (proposals,) = bench.turn(verifier, *drafts)
    assert proposals.rounds.tolist() == [2]


def test_only_as_many_proposals_as_wanted_are_sent() -> None:
    bench = LoopBench()
    (proposals,) = bench.draft(bench.connect(), [bench.block(5)], num_proposals=2)
    assert proposals.tokens.shape == (1, 2)
    (proposals,) = bench.draft(bench.connect(), [bench.block(5)], num_proposals=99)
    assert proposals.tokens.shape == (1, 5)


def test_closed_requests_and_lost_channels_free_their_pages() -> None:
    bench = LoopBench()
    first, second = bench.connect(), bench.connect()
    bench.draft(first, [bench.block(30)] * 2)
    bench.draft(second, [bench.block(30)] * 2)
    assert len(bench.loop.contexts) == 4
    bench.turn(first, Close(0))
    assert len(bench.loop.contexts) == 3
    second.close()
    bench.loop.step()
    assert (len(bench.loop.contexts), bench.loop.num_channels) == (1, 1)
    bench.turn(first, Close(1))
    assert bench.loop.contexts.page_usage_ratio == 0.0


def test_a_request_may_leave_and_return_under_its_uid() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    bench.draft(verifier, [bench.block(30, seed=1)])
    bench.turn(verifier, Close(0))
    block = bench.block(18, seed=2)
    (proposals,) = bench.draft(verifier, [block])
    assert_proposals(proposals, 0, bench.drafter, block, item_of(block, 0))


def test_a_draft_of_a_request_that_closed_meanwhile_is_not_answered() -> None:
    bench = LoopBench()
    block = bench.block(5)
    messages: list[Message] = [
        Open(0),
        features_of(block, 0, 0, 5),
        draft_of([item_of(block, 0)]),
        Close(0),
    ]
    assert bench.turn(bench.connect(), *messages) == []


def test_bulk_that_its_requests_close_has_overtaken_is_ignored() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    block = bench.block(5)
    assert bench.turn(verifier, Open(0), Close(0), features_of(block, 0, 0, 5), Close(0)) == []
    assert not is_dropped(verifier)
    assert bench.loop.contexts.page_usage_ratio == 0.0


def test_pages_that_change_hands_within_one_turn_hold_the_last_owner_s_rows() -> None:
    bench = LoopBench(num_pages=2)
    verifier = bench.connect()
    old, new = bench.block(32, seed=1), bench.block(32, seed=2)
    (proposals,) = bench.turn(
        verifier,
        Open(1),
        features_of(old, 1, 0, 32),
        Close(1),
        Open(2),
        features_of(new, 2, 0, 32),
        draft_of([item_of(new, 2)]),
    )
    assert_proposals(proposals, 0, bench.drafter, new, item_of(new, 2))


def test_under_page_pressure_contexts_shrink_to_suffixes() -> None:
    bench = LoopBench(num_pages=4)
    verifier = bench.connect()
    blocks = [bench.block(64, seed=1), bench.block(64, seed=2)]
    (proposals,) = bench.draft(verifier, blocks)
    for uid, block in enumerate(blocks):
        suffix = type(block)(block.features, block.anchor, start=32)
        assert_proposals(proposals, uid, bench.drafter, suffix, item_of(suffix, uid))


def test_without_any_page_left_a_request_is_refused_as_busy() -> None:
    bench = LoopBench(num_pages=1)
    blocks = [bench.block(10, seed=1), bench.block(10, seed=2)]
    answers = bench.draft(bench.connect(), blocks)
    assert [busy_rounds(answer) for answer in answers if isinstance(answer, Busy)] == [[(1, 7)]]
    assert [answer.uids.tolist() for answer in answers if isinstance(answer, Proposals)] == [[0]]


def test_a_context_eight_times_the_window_slides_through_few_pages() -> None:
    config = small_config(layer_types=(SLIDING,) * 3, sliding_window=20)
    bench = LoopBench(drafter=random_drafter(config), num_pages=4)
    verifier = bench.connect()
    whole = bench.block(160)
    bench.turn(verifier, Open(0))
    for end in range(10, 161, 10):
        bench.turn(verifier, features_of(whole, 0, end - 10, end))
    (proposals,) = bench.turn(verifier, draft_of([item_of(whole, 0)]))
    assert_proposals(proposals, 0, bench.drafter, whole, item_of(whole, 0))


def test_features_of_another_float_type_are_understood() -> None:
    bench = LoopBench()
    block = bench.block(20)
    rounded = type(block)(block.features.bfloat16().float(), block.anchor)
    verifier = bench.connect(msgspec.structs.replace(VERIFIER, features_dtype="bfloat16"))
    rows = block.features.bfloat16().view(torch.uint8).numpy()
    (proposals,) = bench.turn(verifier, Open(0), Features(0, 0, rows), draft_of([item_of(block, 0)]))
    assert_proposals(proposals, 0, bench.drafter, rounded, item_of(rounded, 0))


def test_features_that_are_not_finite_cost_only_their_own_request() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    good = bench.block(20)
    bad = type(good)(torch.full_like(good.features, torch.nan), good.anchor)
    busy, proposals = bench.draft(verifier, [bad, good], temperature=1.0, seed=5)
    assert busy_rounds(busy) == [(0, 7)]
    assert proposals.uids.tolist() == [1]
    assert_proposals(proposals, 0, bench.drafter, good, item_of(good, 1, temperature=1.0, seed=5))


def test_pages_of_features_that_are_not_finite_are_not_cached() -> None:
    bench = LoopBench()
    verifier = bench.connect()
    bad = Block(torch.full((20, 24), torch.nan), 3)
    bench.turn(verifier, Open(1, keys_of(0, 1)), features_of(bad, 1, 0, 20), draft_of([item_of(bad, 1)]))
    bench.turn(verifier, Open(2, keys_of(0, 1)))
    assert bench.opened[-1].ranges == []


ROWS = np.zeros((2, 4 * 24), np.uint8)


@pytest.mark.parametrize(
    "messages",
    [
        [Open(1), Open(1)],
        [Opened(1, 0, [], 1)],
        [Open(1), Features(1, 0, ROWS[:, 1:])],
        [draft_of([item_of(LoopBench().block(0), 3)])],
        [Open(1), draft_of([item_of(LoopBench().block(0), 1, anchor=80)])],
        [Need(1, 0, 1)],
        [Busy(np.array([[1], [1]]))],
    ],
)
def test_a_verifier_that_breaks_the_protocol_loses_its_channel_and_nobody_else_does(
    messages: list[Message],
) -> None:
    bench = LoopBench()
    bad, good = bench.connect(), bench.connect()
    for message in messages:
        bad.send(message)
    (proposals,) = bench.draft(good, [bench.block(5)])
    assert proposals.uids.tolist() == [0]
    assert is_dropped(bad)
    assert (bench.loop.num_channels, len(bench.loop.contexts)) == (1, 1)


def test_a_verifier_with_features_of_an_unknown_type_is_refused() -> None:
    bench = LoopBench()
    verifier = bench.connect(msgspec.structs.replace(VERIFIER, features_dtype="int4"))
    bench.loop.step()
    assert is_dropped(verifier)


class FailingRunner(DraftRunner):
    """A drafter whose model fails."""

    def draft(self, asks: Draft, contexts: DraftPages) -> Drafts:
        assert len(asks) == len(contexts.starts)
        raise RuntimeError("out of memory")


def test_a_failure_of_the_model_ends_the_loop_its_channels_and_its_health() -> None:
    bench = LoopBench()
    bench.loop = DrafterLoop(FailingRunner(bench.drafter, 4, random_seed=1), max_context_tokens=64)
    verifier = bench.connect()
    verifier.send(Open(0))
    verifier.send(draft_of([item_of(bench.block(0), 0)]))
    bench.loop.start()
    bench.loop._thread.join(10.0)
    assert is_dropped(verifier)
    with pytest.raises(EngineStoppedError, match="failed"):
        bench.loop.check_health(60.0)
    assert is_dropped(bench.connect()), "a channel that comes too late is closed"


def test_health_tells_whether_the_loop_runs_and_advances() -> None:
    bench = LoopBench()
    with pytest.raises(EngineStoppedError, match="does not run"):
        bench.loop.check_health(60.0)
    bench.loop.start()
    verifier = bench.connect()
    bench.loop.check_health(60.0)
    with pytest.raises(EngineStoppedError, match="not advanced"):
        bench.loop.check_health(-1.0)
    bench.loop.stop()
    assert is_dropped(verifier)
    with pytest.raises(EngineStoppedError, match="does not run"):
        bench.loop.check_health(60.0)
