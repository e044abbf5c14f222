from __future__ import annotations

from collections.abc import AsyncGenerator

from dspine_cluster.api.answers import collect, total_usage
from dspine_cluster.types import FinishReason, RoundOutput, Usage


async def outputs() -> AsyncGenerator[tuple[int, RoundOutput], None]:
    yield 1, RoundOutput((1,), "b", usage=Usage(output_tokens=1))
    yield 0, RoundOutput((2,), "a", finish_reason=FinishReason.STOP, usage=Usage(output_tokens=1))
    yield 1, RoundOutput((), "c", finish_reason=FinishReason.LENGTH, usage=Usage(output_tokens=2))


async def test_completions_are_ordered_by_index_not_by_arrival() -> None:
    completions = await collect(outputs())
    assert [completion.text for completion in completions] == ["a", "bc"]
    assert [completion.finish_reason for completion in completions] == ["stop", "length"]


async def test_the_last_round_has_the_usage() -> None:
    assert [completion.usage.output_tokens for completion in await collect(outputs())] == [1, 2]


def test_a_prompt_counts_once_and_its_completions_each() -> None:
    usage = Usage(
        prompt_tokens=10, output_tokens=3, cached_prompt_tokens=4, verified_tokens=15, accepted_tokens=2
    )
    body = total_usage([usage] * 6, num_choices=3)
    assert (body.prompt_tokens, body.completion_tokens, body.total_tokens) == (20, 18, 38)
    assert body.prompt_tokens_details.cached_tokens == 8
    assert body.completion_tokens_details.accepted_prediction_tokens == 12
    assert body.completion_tokens_details.rejected_prediction_tokens == 78


def test_reasoning_tokens_are_told_where_they_are_known() -> None:
    assert total_usage([Usage()], 1, 5).completion_tokens_details.reasoning_tokens == 5
    unknown = total_usage([Usage()], 1).completion_tokens_details
    assert "reasoning_tokens" not in unknown.model_dump(exclude_unset=True)
