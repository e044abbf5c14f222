"""What a verifier takes: whoever sends a request, nothing in it may bring the loop down."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from dspine_cluster.errors import RequestError
from dspine_cluster.types import GenerateRequest, SamplingParams

_MIN_TEMPERATURE = 1e-5
"""Logits divided by less are no finite numbers any more; 0 is greedy."""
_MAX_TOP_LOGPROBS = 100
_RANGES = {
    "top_k": (0, inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "seed": (-(2**63), 2**63 - 1),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "repetition_penalty": (0.01, 100),
}


def admit(
    request: GenerateRequest, *, vocab_size: int, max_model_len_tokens: int, mask_token_id: int | None = None
) -> GenerateRequest:
    """The request, with `max_tokens` lowered to what the context has room for. `mask_token_id` is never generated.

    Raises:
        RequestError: it cannot be served as it is.
    """
    num_prompt = len(request.prompt_ids)
    if not num_prompt:
        raise RequestError("the prompt is empty", param="prompt")
    if num_prompt >= max_model_len_tokens:
        raise RequestError(
            f"the prompt has {num_prompt} tokens; with at least one output token this model takes "
            f"{max_model_len_tokens}",
            param="messages",
            code="context_length_exceeded",
        )
    bias_ids = [token for token, _ in request.sampling.logit_bias]
    allowed_ids = request.sampling.allowed_token_ids
    for param, ids in (
        ("prompt", request.prompt_ids),
        ("forced_output_ids", request.forced_output_ids),
        ("stop_token_ids", request.stop.stop_token_ids),
        ("logit_bias", bias_ids),
        ("allowed_token_ids", allowed_ids or ()),
        ("bad_words", [token for word in request.sampling.bad_words for token in word]),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise RequestError(f"{param}: token ids must lie in [0, {vocab_size})", param=param)
    if allowed_ids is not None and not set(allowed_ids) - {mask_token_id}:
        raise RequestError("allowed_token_ids: no token is left to generate", param="allowed_token_ids")
    if allowed_ids is not None and request.grammar is not None:
        raise RequestError(
            "allowed_token_ids: a grammar says itself what may come; leave one of them out",
            param="allowed_token_ids",
        )
    if not all(request.sampling.bad_words):
        raise RequestError("bad_words: a word has no tokens", param="bad_words")
    _check_sampling(request.sampling)
    if not all(request.stop.stop_strings):
        raise RequestError("stop: a stop string is empty", param="stop")
    if not 0 <= (request.num_top_logprobs or 0) <= min(_MAX_TOP_LOGPROBS, vocab_size):
        raise RequestError(
            f"top_logprobs must be in [0, {min(_MAX_TOP_LOGPROBS, vocab_size)}]", param="top_logprobs"
        )
    max_tokens = min(request.stop.max_tokens, max_model_len_tokens - num_prompt)
    if len(request.forced_output_ids) >= max_tokens:
        raise RequestError(
            "forced_output_ids leave no token to generate within max_tokens", param="max_tokens"
        )
    return replace(request, stop=replace(request.stop, max_tokens=max_tokens))


def _check_sampling(sampling: SamplingParams) -> None:
    """Refuse numbers that leave no distribution to sample from; NaN lies in no range."""
    if not (sampling.is_greedy or _MIN_TEMPERATURE <= sampling.temperature <= 100):
        raise RequestError(f"temperature must be 0 or in [{_MIN_TEMPERATURE}, 100]", param="temperature")
    for param, (lowest, highest) in _RANGES.items():
        value = getattr(sampling, param)
        if value is not None and not lowest <= value <= highest:
            raise RequestError(f"{param} must be in [{lowest}, {highest}]", param=param)
    if not all(abs(bias) <= 1000 for _, bias in sampling.logit_bias):
        raise RequestError("logit_bias: values must be in [-1000, 1000]", param="logit_bias")
