from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.draft_stats import DraftStats
from dspine_cluster.types import (
    FinishReason,
    GenerateRequest,
    Logprobs,
    RoundOutput,
    SamplingParams,
    StopConditions,
    Usage,
)
from dspine_serve.progress import Progress

REQUEST = GenerateRequest("id", (1, 2, 3), SamplingParams(), StopConditions(max_tokens=4))


def test_the_next_attempt_is_forced_to_what_the_caller_has() -> None:
    progress = Progress(REQUEST)
    assert progress.begin() == REQUEST
    progress.add(RoundOutput((7, 8), "ab"))
    assert progress.begin().forced_output_ids == (7, 8)
    progress.add(RoundOutput((9,), "c"))
    assert progress.begin().forced_output_ids == (7, 8, 9)


def test_output_that_was_forced_from_the_start_stays_forced() -> None:
    request = GenerateRequest("id", (1,), SamplingParams(), StopConditions(9), forced_output_ids=(5,))
    progress = Progress(request)
    assert progress.begin() == request
    progress.add(RoundOutput((6,), "a"))
    assert progress.begin().forced_output_ids == (5, 6)


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=4))
def test_the_usage_is_that_of_all_rounds_of_all_attempts(attempts: list[list[int]]) -> None:
    progress = Progress(REQUEST)
    num_tokens = num_rounds = 0
    usage = None
    for cached, rounds in enumerate(attempts):
        progress.begin()
        for number, num_committed in enumerate(rounds, start=1):
            num_tokens, num_rounds = num_tokens + num_committed, num_rounds + 1
            present = Usage(3, num_tokens, cached, number, 3 * number, 2 * number, number)
            usage = progress.add(RoundOutput((1,) * num_committed, "", usage=present)).usage
    first = next((number for number, rounds in enumerate(attempts) if rounds), 0)
    if usage is not None:
        assert usage == Usage(3, num_tokens, first, num_rounds, 3 * num_rounds, 2 * num_rounds, num_rounds)


def test_the_last_item_ends_it() -> None:
    progress = Progress(REQUEST)
    progress.add(RoundOutput((7,), "a"))
    assert not progress.has_ended
    progress.add(RoundOutput((8,), "b", finish_reason=FinishReason.STOP))
    assert progress.has_ended


def test_log_probabilities_pass_through() -> None:
    logprobs = Logprobs((-0.5,), ((7,),), ((-0.5,),))
    output = Progress(REQUEST).add(RoundOutput((7,), "a", logprobs=logprobs, prompt_logprobs=logprobs))
    assert output.logprobs == output.prompt_logprobs == logprobs


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4))
def test_statistics_count_the_rounds_of_all_attempts_and_no_prefill_s_token(
    attempts: list[list[int]],
) -> None:
    """Each attempt is a prefill's token and then rounds, given by how many of three proposals they accept."""
    progress, stats = Progress(REQUEST), DraftStats()
    for accepted_counts in attempts:
        progress.begin()
        usage = Usage()
        stats.push(progress.add(RoundOutput((1,), "a", usage=usage)))
        for num_accepted in accepted_counts:
            usage = replace(
                usage,
                num_rounds=usage.num_rounds + 1,
                verified_tokens=usage.verified_tokens + 3,
                accepted_tokens=usage.accepted_tokens + num_accepted,
            )
            tokens = (1,) * (num_accepted + 1)
            stats.push(progress.add(RoundOutput(tokens, "a", num_accepted, usage=usage)))
    rounds = [num_accepted for attempt in attempts for num_accepted in attempt]
    body = stats.body()
    assert (body.rounds, body.accepted_tokens) == (len(rounds), sum(rounds))
    assert sum(body.accepted_by_position) == sum(rounds)
    assert sum(body.verified_by_position) == body.verified_tokens == 3 * len(rounds)
    if rounds:
        assert body.acceptance_length == (sum(rounds) + len(rounds)) / len(rounds)
