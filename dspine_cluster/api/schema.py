"""The bodies that clients send, in OpenAI's shape with the extensions that vLLM and SGLang share.

Types are strict: `"1"` is no number and `true` is no integer. Unknown fields are kept in `model_extra`, where
`unsupported.check_extra_fields` refuses or logs them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0)]
# `fail_fast`: a long list of wrong items is one error, not millions.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompts = str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class RequestModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


class StreamOptions(RequestModel):
    include_usage: bool = False


class TextPart(RequestModel):
    """One part of a message's content. Only text is served; `type` is checked where the prompt is made."""

    type: str
    text: str | None = None


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None


class GenerationOptions(RequestModel):
    """What chat and text completions have in common. Defaults are OpenAI's."""

    model: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Int64 | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Keep the k most likely tokens; 0 and -1 keep all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Smaller is served first."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Only requests of the same salt share cached prefixes."""

    @property
    def num_choices(self) -> int:
        """Completions of each prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with an event that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatCompletionRequest(GenerationOptions):
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationOptions):
    prompt: Prompts
