from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import EncodedPrompt
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.api.translate import generate_requests
from dspine_cluster.errors import RequestError
from dspine_cluster.types import SamplingParams

LIMITS = ApiLimits(max_model_len_tokens=100, vocab_size=50)
PROMPT = EncodedPrompt(tuple(range(10)))


def chat(**fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"messages": [ChatMessage(role="user", content="x")], **fields}
    )


def text(**fields: object) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


def test_defaults_are_those_of_openai() -> None:
    [request] = generate_requests(chat(), "id", [PROMPT], LIMITS)
    assert request.sampling == SamplingParams()
    assert request.stop.stop_strings == ()


def test_what_shows_of_ends_and_special_tokens_is_the_client_s_choice() -> None:
    [request] = generate_requests(chat(), "id", [PROMPT], LIMITS)
    assert (request.stop.shows_stop, request.skip_special_tokens) == (False, True)
    shown = chat(include_stop_str_in_output=True, skip_special_tokens=False)
    [request] = generate_requests(shown, "id", [PROMPT], LIMITS)
    assert (request.stop.shows_stop, request.skip_special_tokens) == (True, False)


def test_allowed_tokens_count_once_and_bad_words_are_taken_as_they_are_encoded() -> None:
    body = chat(allowed_token_ids=[7, 3, 7])
    [request] = generate_requests(body, "id", [PROMPT], LIMITS, bad_words=((1, 2),))
    assert request.sampling == SamplingParams(allowed_token_ids=(3, 7), bad_words=((1, 2),))


@pytest.mark.parametrize("allowed", [[], [50]])
def test_allowed_tokens_that_do_not_exist_are_refused(allowed: list[int]) -> None:
    with pytest.raises(RequestError) as caught:
        generate_requests(chat(allowed_token_ids=allowed), "id", [PROMPT], LIMITS)
    assert caught.value.param == "allowed_token_ids"


def test_a_chat_may_fill_what_is_left_of_the_context() -> None:
    [request] = generate_requests(chat(), "id", [PROMPT], LIMITS)
    assert request.stop.max_tokens == 90


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(10, 16), (90, 10)])
def test_a_text_completion_has_16_tokens_or_what_is_left(prompt_tokens: int, max_tokens: int) -> None:
    [request] = generate_requests(text(), "id", [EncodedPrompt((1,) * prompt_tokens)], LIMITS)
    assert request.stop.max_tokens == max_tokens


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    [request] = generate_requests(chat(max_completion_tokens=3, max_tokens=5), "id", [PROMPT], LIMITS)
    assert request.stop.max_tokens == 3


@given(prompt_tokens=st.integers(1, 120), max_tokens=st.integers(1, 120))
def test_prompt_and_output_never_exceed_the_context(prompt_tokens: int, max_tokens: int) -> None:
    prompts = [EncodedPrompt((1,) * prompt_tokens)]
    if prompt_tokens + max_tokens <= 100:
        [request] = generate_requests(text(max_tokens=max_tokens), "id", prompts, LIMITS)
        assert request.stop.max_tokens == max_tokens
    else:
        with pytest.raises(RequestError) as caught:
            generate_requests(text(max_tokens=max_tokens), "id", prompts, LIMITS)
        assert caught.value.code == "context_length_exceeded"


def test_top_k_of_minus_one_keeps_all() -> None:
    [request] = generate_requests(text(top_k=-1), "id", [PROMPT], LIMITS)
    assert request.sampling.top_k == 0


def test_temperature_zero_is_not_taken_for_missing() -> None:
    [request] = generate_requests(text(temperature=0), "id", [PROMPT], LIMITS)
    assert request.sampling.is_greedy


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    [request] = generate_requests(text(temperature=temperature), "id", [PROMPT], LIMITS)
    assert request.sampling.is_greedy


def test_choices_of_a_seeded_prompt_have_seeds_of_their_own() -> None:
    requests = generate_requests(text(seed=2**63 - 1, n=2), "id", [PROMPT], LIMITS)
    assert [request.sampling.seed for request in requests] == [2**63 - 1, -(2**63)]


def test_requests_have_ids_of_their_own_and_keep_the_order_of_prompts() -> None:
    requests = generate_requests(text(n=2), "id", [EncodedPrompt((1,)), EncodedPrompt((2,))], LIMITS)
    assert [request.request_id for request in requests] == ["id-0", "id-1", "id-2", "id-3"]
    assert [request.prompt_ids for request in requests] == [(1,), (1,), (2,), (2,)]


def test_every_sampling_field_is_passed_on() -> None:
    body = text(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        seed=4,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={"7": -5},
    )
    [request] = generate_requests(body, "id", [PROMPT], LIMITS)
    assert request.sampling == SamplingParams(0.5, 3, 0.9, 0.1, 4, 0.2, 0.3, 1.1, ((7, -5.0),))


def test_every_stop_condition_is_passed_on() -> None:
    body = text(stop=["a", "b"], stop_token_ids=[3], min_tokens=2, ignore_eos=True, max_tokens=5)
    [request] = generate_requests(body, "id", [PROMPT], LIMITS)
    stop = request.stop
    assert (stop.stop_strings, stop.stop_token_ids) == (("a", "b"), (3,))
    assert (stop.min_tokens, stop.max_tokens, stop.ignore_eos) == (2, 5, True)


def test_boundaries_and_salt_go_with_every_completion() -> None:
    prompt = EncodedPrompt((1, 2, 3), message_boundaries=(2,))
    requests = generate_requests(chat(n=2, cache_salt="tenant"), "id", [prompt], LIMITS)
    assert [(r.message_boundaries, r.cache_salt) for r in requests] == [((2,), "tenant")] * 2


def test_without_a_salt_all_requests_share_the_empty_one() -> None:
    [request] = generate_requests(chat(), "id", [PROMPT], LIMITS)
    assert request.cache_salt == ""
