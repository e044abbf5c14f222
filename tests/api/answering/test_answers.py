from __future__ import annotations

from dspine_cluster.api.answering.answers import total_usage
from dspine_cluster.types import Usage


def test_a_prompt_counts_once_and_its_completions_each() -> None:
    usage = Usage(
        prompt_tokens=10, output_tokens=3, cached_prompt_tokens=4, verified_tokens=15, accepted_tokens=2
    )
    body = total_usage(dict.fromkeys(range(6), usage), num_choices=3)
    assert (body.prompt_tokens, body.completion_tokens, body.total_tokens) == (20, 18, 38)
    assert body.prompt_tokens_details.cached_tokens == 8
    assert body.completion_tokens_details.accepted_prediction_tokens == 12
    assert body.completion_tokens_details.rejected_prediction_tokens == 78


def test_a_prompt_is_as_cached_as_its_first_completion_found_it() -> None:
    usages = {
        3: Usage(prompt_tokens=20, cached_prompt_tokens=16),
        1: Usage(prompt_tokens=10, cached_prompt_tokens=9),
        0: Usage(prompt_tokens=10),
    }
    body = total_usage(usages, num_choices=2)
    assert (body.prompt_tokens, body.prompt_tokens_details.cached_tokens) == (30, 16)


def test_reasoning_tokens_are_told_where_they_are_known() -> None:
    assert total_usage({0: Usage()}, 1, 5).completion_tokens_details.reasoning_tokens == 5
    unknown = total_usage({0: Usage()}, 1).completion_tokens_details
    assert "reasoning_tokens" not in unknown.model_dump(exclude_unset=True)
