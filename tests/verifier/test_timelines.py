"""The phases that a verifier loop notes of requests that are traced."""

from __future__ import annotations

from itertools import pairwise

from dspine_cluster.core.session import Phase
from dspine_cluster.observability.timeline import Timeline
from dspine_cluster.types import FinishReason
from tests.verifier.harness import (
    LoopHarness,
    Result,
    ScriptedChannel,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

PHASES = [Phase.WAITING, Phase.PREFILL, Phase.DECODE]


def run(harness: LoopHarness, count: int, max_tokens: int) -> list[Timeline]:
    timelines = [Timeline(harness.clock) for _ in range(count)]
    for uid, (prompt, timeline) in enumerate(zip(random_prompts(count, seed=3), timelines, strict=True)):
        harness.submit(uid, make_request(prompt, max_tokens=max_tokens, ignore_eos=True), timeline)
    harness.run()
    return timelines


def phases(timeline: Timeline) -> list[Phase]:
    return [moment.phase for moment in timeline.moments]


def committed_in_rounds(timeline: Timeline) -> int:
    assert timeline.ended is not None
    return sum(
        end.usage.output_tokens - begin.usage.output_tokens
        for begin, end in pairwise([*timeline.moments, timeline.ended])
        if begin.phase is Phase.DECODE
    )


def final(result: Result) -> tuple[int, int]:
    usage = result.outputs[-1].usage
    return usage.output_tokens, usage.num_rounds


def test_each_phase_is_noted_when_it_begins_with_what_had_been_done() -> None:
    channel = ScriptedChannel(lambda item: [1, 2, 3])
    harness = LoopHarness(random_target(hybrid_config(), 1), channel=channel)
    for uid, timeline in enumerate(run(harness, 6, max_tokens=20)):
        assert phases(timeline) == PHASES
        assert timeline.ended is not None
        times = [moment.at_s for moment in (*timeline.moments, timeline.ended)]
        assert times == sorted(times)
        queue, prefill, decode = timeline.moments
        assert (queue.usage.output_tokens, prefill.usage.output_tokens, decode.usage.output_tokens) == (
            0,
            0,
            1,
        )
        ended = timeline.ended.usage
        assert (ended.output_tokens, ended.num_rounds) == final(harness.results[uid])
        assert committed_in_rounds(timeline) == 19
        assert timeline.drafter == "scripted"


def test_requests_that_are_preempted_wait_and_are_prefilled_again() -> None:
    harness = LoopHarness(random_target(hybrid_config(), 1), pool_tokens=272)
    timelines = run(harness, 12, max_tokens=80)
    num_preempted = 0
    for uid, timeline in enumerate(timelines):
        rest = phases(timeline)
        while len(rest) > 3:
            # It may lose its pages before its prompt is computed.
            num_phases = 3 if rest[2] is Phase.DECODE else 2
            assert rest[:num_phases] == PHASES[:num_phases]
            rest = rest[num_phases:]
            num_preempted += 1
        assert rest == PHASES
        num_first = phases(timeline).count(Phase.DECODE)
        assert committed_in_rounds(timeline) == final(harness.results[uid])[0] - num_first
    assert num_preempted == harness.loop.metrics.preemptions_total > 0


def test_a_request_that_ends_with_its_first_token_was_decoded_for_no_round() -> None:
    harness = LoopHarness(random_target(hybrid_config(), 1))
    [timeline] = run(harness, 1, max_tokens=1)
    assert phases(timeline) == PHASES
    assert timeline.ended is not None
    assert timeline.ended.usage.num_rounds == 0
    assert harness.results[0].finish_reason is FinishReason.LENGTH


def test_an_aborted_request_has_ended() -> None:
    harness = LoopHarness(random_target(hybrid_config(), 1))
    timeline = Timeline(harness.clock)
    harness.submit(0, make_request([1, 2, 3], max_tokens=40), timeline)
    harness.step()
    harness.loop.abort(0)
    assert timeline.ended is not None
    assert timeline.drafter is None
