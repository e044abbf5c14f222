"""From a client's body to the requests that a verifier takes: one for each completion asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dspine_cluster.api.bad_words import BadWords
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import EncodedPrompt
from dspine_cluster.api.prompting.token_bounds import context_exceeded
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest, GenerationOptions
from dspine_cluster.errors import RequestError
from dspine_cluster.types import GenerateRequest, OutputGrammar, SamplingParams, StopConditions

_DEFAULT_COMPLETION_TOKENS = 16
_MIN_TEMPERATURE = 1e-5
"""Below it sampling is greedy: logits divided by less are no finite numbers any more."""


def generate_requests(
    body: ChatCompletionRequest | CompletionRequest,
    request_id: str,
    prompts: Sequence[EncodedPrompt],
    limits: ApiLimits,
    grammar: OutputGrammar | None = None,
    bad_words: BadWords = (),
) -> list[GenerateRequest]:
    """The requests of all completions, in the order of their index: `n` of the first prompt, of the second, ...

    With a seed, completion j of a prompt gets `seed + j`, so that completions differ and stay reproducible.

    Raises:
        RequestError: a value is out of this server's bounds; nothing has been started yet.
    """
    param = "messages" if isinstance(body, ChatCompletionRequest) else "prompt"
    sampling = _sampling(body, _logit_bias(body, limits), _allowed_token_ids(body, limits), bad_words)
    requests = []
    for prompt_index, prompt in enumerate(prompts):
        prompt_ids = prompt.token_ids
        _check_prompt(prompt_ids, param, limits)
        stop = _stop_conditions(body, len(prompt_ids), param, limits)
        for choice in range(body.num_choices):
            requests.append(
                GenerateRequest(
                    request_id=f"{request_id}-{prompt_index * body.num_choices + choice}",
                    prompt_ids=prompt_ids,
                    sampling=_of_choice(sampling, choice),
                    stop=stop,
                    priority=body.priority or 0,
                    message_boundaries=prompt.message_boundaries,
                    cache_salt=body.cache_salt or "",
                    grammar=grammar,
                    num_top_logprobs=body.num_top_logprobs,
                    skip_special_tokens=body.skip_special_tokens is not False,
                    prompt_logprobs=_asks_for_prompt_logprobs(body),
                )
            )
    return requests


def _check_prompt(prompt_ids: Sequence[int], param: str, limits: ApiLimits) -> None:
    if not prompt_ids:
        raise RequestError(f"{param}: the prompt has no tokens.", param=param)
    if max(prompt_ids) >= limits.vocab_size:
        raise RequestError(f"{param}: token ids must be below {limits.vocab_size}.", param=param)
    if len(prompt_ids) >= limits.max_model_len_tokens:
        raise context_exceeded(limits.max_model_len_tokens, str(len(prompt_ids)), param)


def _stop_conditions(
    body: ChatCompletionRequest | CompletionRequest, prompt_tokens: int, param: str, limits: ApiLimits
) -> StopConditions:
    room_tokens = limits.max_model_len_tokens - prompt_tokens
    if isinstance(body, ChatCompletionRequest):
        max_tokens, default_tokens = body.max_completion_tokens or body.max_tokens, room_tokens
    else:
        # Nothing else leaves out a generation: one token is made, and not told of, where none is wanted.
        max_tokens = 1 if body.max_tokens == 0 else body.max_tokens
        default_tokens = min(_DEFAULT_COMPLETION_TOKENS, room_tokens)
    if max_tokens is not None and max_tokens > room_tokens:
        raise RequestError(
            f"This model's maximum context length is {limits.max_model_len_tokens} tokens. The prompt has "
            f"{prompt_tokens} and {max_tokens} more were asked for: shorten the prompt or ask for fewer tokens.",
            param=param,
            code="context_length_exceeded",
        )
    max_tokens = max_tokens or default_tokens
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens: {min_tokens} is more than the {max_tokens} tokens allowed.", param="min_tokens"
        )
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_strings=_stop_strings(body, limits),
        stop_token_ids=_stop_token_ids(body, limits),
        ignore_eos=body.ignore_eos or False,
        shows_stop=body.include_stop_str_in_output or False,
    )


def _asks_for_prompt_logprobs(body: ChatCompletionRequest | CompletionRequest) -> bool:
    return isinstance(body, CompletionRequest) and body.echo is True and body.logprobs is not None


def _stop_strings(body: GenerationOptions, limits: ApiLimits) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > limits.max_stop_strings:
        raise RequestError(f"stop: at most {limits.max_stop_strings} strings are allowed.", param="stop")
    if any(not 0 < len(stop) <= limits.max_stop_chars for stop in stops):
        raise RequestError(
            f"stop: strings must have between 1 and {limits.max_stop_chars} characters.", param="stop"
        )
    return stops


def _stop_token_ids(body: GenerationOptions, limits: ApiLimits) -> tuple[int, ...]:
    token_ids = tuple(body.stop_token_ids or ())
    if len(token_ids) > limits.max_stop_strings:
        raise RequestError(
            f"stop_token_ids: at most {limits.max_stop_strings} are allowed.", param="stop_token_ids"
        )
    if any(token_id >= limits.vocab_size for token_id in token_ids):
        raise RequestError(
            f"stop_token_ids: token ids must be below {limits.vocab_size}.", param="stop_token_ids"
        )
    return token_ids


def _logit_bias(body: GenerationOptions, limits: ApiLimits) -> tuple[tuple[int, float], ...]:
    bias = []
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) < limits.vocab_size):
            raise RequestError(
                f"logit_bias: keys must be token ids below {limits.vocab_size}, not {key[:20]!r}.",
                param="logit_bias",
            )
        bias.append((int(key), value))
    return tuple(bias)


def _allowed_token_ids(body: GenerationOptions, limits: ApiLimits) -> tuple[int, ...] | None:
    if body.allowed_token_ids is None:
        return None
    if not body.allowed_token_ids or max(body.allowed_token_ids) >= limits.vocab_size:
        raise RequestError(
            f"allowed_token_ids: there must be some, below {limits.vocab_size}.", param="allowed_token_ids"
        )
    return tuple(sorted(set(body.allowed_token_ids)))


def _sampling(
    body: GenerationOptions,
    logit_bias: tuple[tuple[int, float], ...],
    allowed_token_ids: tuple[int, ...] | None,
    bad_words: BadWords,
) -> SamplingParams:
    temperature = _or(body.temperature, 1.0)
    return SamplingParams(
        temperature=0.0 if temperature < _MIN_TEMPERATURE else temperature,
        top_k=max(body.top_k or 0, 0),
        top_p=_or(body.top_p, 1.0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=logit_bias,
        allowed_token_ids=allowed_token_ids,
        bad_words=bad_words,
    )


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    if sampling.seed is None or choice == 0:
        return sampling
    return replace(sampling, seed=_wrapping_add(sampling.seed, choice))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _wrapping_add(seed: int, offset: int) -> int:
    """The sum as a signed 64-bit integer."""
    return (seed + offset + 2**63) % 2**64 - 2**63
