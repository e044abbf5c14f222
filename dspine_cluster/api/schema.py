"""The bodies that clients send, in OpenAI's shape with the extensions that vLLM and SGLang share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dspine_cluster.api.chat_schema import ChatMessage, ChatTemplateKwargs, Tool, ToolObject
from dspine_cluster.api.request_fields import (
    Int64,
    LogitBias,
    NumTopLogprobs,
    Prompts,
    RequestModel,
    Texts,
    TokenIds,
)


class StreamOptions(RequestModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With `include_usage`: events that bring something have the usage so far."""


class DspineOptions(RequestModel):
    """What an answer tells of speculative decoding, in `choices[].dspine`."""

    include_stats: bool = False
    """Rounds, acceptance length and accepted proposals by position, when a choice has ended."""
    include_origins: bool = False
    """Of each token whether it is an accepted proposal."""
    stream_tokens: bool = False
    """A stream has an event for each token, not for each round."""


class JsonSchemaFormat(RequestModel):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """None takes any JSON."""
    strict: bool | None = None
    """Has no effect: every schema is enforced."""


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestModel):
    """What vLLM calls so: one of these."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """A JSON schema, or its text."""
    json_object: bool | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    """In EBNF, as llama.cpp and xgrammar have it."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields that ask for something."""
        fields = self.model_dump(include=set(type(self).model_fields), by_alias=True)
        return {name: value for name, value in fields.items() if value is not None and value is not False}


class SamplingOptions(RequestModel):
    """What all requests that generate have in common. Defaults are OpenAI's."""

    model: str | None = None
    stream: bool | None = None
    seed: Int64 | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    """The text has what ended it, too: the stop string, or the end token's text."""
    skip_special_tokens: bool | None = None
    """False: special tokens show in the text."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Keep the k most likely tokens; 0 and -1 keep all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    """No others become output."""
    bad_words: Texts | None = None
    """Do not become output, unless nothing else can."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Smaller is served first."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Only requests of the same salt share cached prefixes."""
    user: str | None = None
    """Has no effect."""


class GenerationOptions(SamplingOptions):
    """What chat and text completions have in common."""

    n: Annotated[int, Field(ge=1)] | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """In log-probabilities write tokens as `token_id:5`."""
    dspine: DspineOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def num_choices(self) -> int:
        """Completions of each prompt."""
        return self.n or 1


class ChatCompletionRequest(GenerationOptions):
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: ChatTemplateKwargs | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolObject | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the most likely tokens are told of at each position; None: not even the chosen one."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The variables of the chat template that the client sets."""
        kwargs: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            kwargs["reasoning_effort"] = self.reasoning_effort
            kwargs["enable_thinking"] = self.reasoning_effort != "none"
        if self.chat_template_kwargs is not None:
            kwargs |= self.chat_template_kwargs.known
        return kwargs


class CompletionRequest(GenerationOptions):
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 only with `echo`."""
    add_special_tokens: bool | None = None
    """False: a text prompt gets none that it does not hold."""
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    logprobs: NumTopLogprobs | None = None

    @property
    def num_top_logprobs(self) -> int | None:
        """As for chats."""
        return self.logprobs


class TokenizeRequest(RequestModel):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    chat_template_kwargs: ChatTemplateKwargs | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The variables of the chat template that the client sets."""
        kwargs = {} if self.chat_template_kwargs is None else self.chat_template_kwargs.known
        return kwargs | {"add_generation_prompt": self.add_generation_prompt is not False}


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: TokenIds
