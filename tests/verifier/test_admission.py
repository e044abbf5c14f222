from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from dspine_cluster.errors import RequestError
from dspine_cluster.types import GenerateRequest, OutputGrammar, SamplingParams, StopConditions
from dspine_cluster.verifier.admission import admit

VOCAB_SIZE = 300
MASK = 7
REQUEST = GenerateRequest("test", (1, 2, 3), SamplingParams(), StopConditions(max_tokens=8))


def admitted(request: GenerateRequest) -> GenerateRequest:
    return admit(request, vocab_size=VOCAB_SIZE, max_model_len_tokens=10)


def refusal(request: GenerateRequest) -> RequestError:
    with pytest.raises(RequestError) as caught:
        admitted(request)
    return caught.value


def test_max_tokens_is_lowered_to_the_room_that_the_prompt_leaves() -> None:
    assert admitted(REQUEST).stop.max_tokens == 7


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    assert refusal(replace(REQUEST, prompt_ids=(1,) * 10)).code == "context_length_exceeded"


def test_forced_tokens_that_leave_nothing_to_generate_are_refused() -> None:
    assert refusal(replace(REQUEST, forced_output_ids=(1,) * 7)).param == "max_tokens"
    assert admitted(replace(REQUEST, forced_output_ids=(1,) * 6))


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 2**70])
@pytest.mark.parametrize(
    "param",
    ["prompt", "forced_output_ids", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"],
)
def test_ids_beyond_the_vocabulary_are_refused_by_name(param: str, token: int) -> None:
    request = {
        "prompt": replace(REQUEST, prompt_ids=(1, token)),
        "forced_output_ids": replace(REQUEST, forced_output_ids=(token,)),
        "stop_token_ids": replace(REQUEST, stop=StopConditions(max_tokens=8, stop_token_ids=(token,))),
        "logit_bias": replace(REQUEST, sampling=SamplingParams(logit_bias=((token, 1.0),))),
        "allowed_token_ids": replace(REQUEST, sampling=SamplingParams(allowed_token_ids=(token,))),
        "bad_words": replace(REQUEST, sampling=SamplingParams(bad_words=((1,), (2, token)))),
    }[param]
    assert refusal(request).param == param


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", 1e-300),
        ("temperature", -1.0),
        ("temperature", nan),
        ("temperature", inf),
        ("top_k", -1),
        ("top_p", 1.5),
        ("top_p", nan),
        ("min_p", -0.1),
        ("seed", 2**63),
        ("presence_penalty", inf),
        ("frequency_penalty", nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("logit_bias", ((5, inf),)),
        ("logit_bias", ((5, nan),)),
    ],
)
def test_numbers_that_leave_no_distribution_are_refused_by_name(param: str, value: Any) -> None:
    sampling = replace(SamplingParams(), **{param: value})
    assert refusal(replace(REQUEST, sampling=sampling)).param == param


def test_requests_that_leave_nothing_to_generate_are_refused() -> None:
    for allowed in ((), (MASK,)):
        request = replace(REQUEST, sampling=SamplingParams(allowed_token_ids=allowed))
        with pytest.raises(RequestError, match="allowed_token_ids"):
            admit(request, vocab_size=VOCAB_SIZE, max_model_len_tokens=10, mask_token_id=MASK)


def test_allowed_tokens_and_a_grammar_are_not_taken_together() -> None:
    sampling = SamplingParams(allowed_token_ids=(1, 2))
    assert admitted(replace(REQUEST, sampling=sampling))
    request = replace(REQUEST, sampling=sampling, grammar=OutputGrammar("{}", "response_format"))
    assert refusal(request).param == "allowed_token_ids"


def test_a_bad_word_without_tokens_is_refused() -> None:
    assert refusal(replace(REQUEST, sampling=SamplingParams(bad_words=((1,), ())))).param == "bad_words"


def test_an_empty_stop_string_is_refused() -> None:
    assert refusal(replace(REQUEST, stop=StopConditions(8, stop_strings=("x", "")))).param == "stop"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-5, top_k=5, top_p=1.0, min_p=1.0, seed=-(2**63)),
        SamplingParams(
            repetition_penalty=0.01, frequency_penalty=-2.0, logit_bias=((VOCAB_SIZE - 1, -100.0),)
        ),
    ],
)
def test_sampling_at_the_borders_is_taken_as_it_is(sampling: SamplingParams) -> None:
    assert admitted(replace(REQUEST, sampling=sampling)).sampling == sampling


@pytest.mark.parametrize("num_top", [-1, 101])
def test_numbers_of_log_probabilities_that_nobody_needs_are_refused(num_top: int) -> None:
    assert refusal(replace(REQUEST, num_top_logprobs=num_top)).param == "top_logprobs"
    assert admitted(replace(REQUEST, num_top_logprobs=100)).num_top_logprobs == 100
