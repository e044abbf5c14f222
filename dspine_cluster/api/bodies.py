"""The bodies that clients receive, in OpenAI's shape. Written with `exclude_unset`: what is not set is not sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    accepted_prediction_tokens: int
    """Committed tokens that the drafter had proposed."""
    rejected_prediction_tokens: int
    """Proposals that the target checked and did not accept; they are no output."""
    reasoning_tokens: int = 0
    """Output tokens up to the end of the reasoning, tags included; where they can be counted exactly."""


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChosenLogprob]
    refusal: None


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    """None for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins in the text of its choice."""


class DspineStats(BaseModel):
    """How one choice was decoded."""

    rounds: int
    drafted: bool
    """Whether any proposal was verified."""
    acceptance_length: float | None
    """Tokens a round, the target's own included."""
    verify_length_mean: float | None
    """Proposals verified a round."""
    proposed_tokens: int
    verified_tokens: int
    accepted_tokens: int
    verified_by_position: list[int]
    """Rounds that verified a first, second, ... proposal."""
    accepted_by_position: list[int]
    """Rounds whose first, second, ... proposal became output."""


class TokenOrigin(BaseModel):
    text: str
    """Of all tokens, joined: the answer's. A character that several tokens make comes with the last of them."""
    accepted: bool
    """Whether it is an accepted proposal; otherwise the target's own."""


class DspineAnswer(BaseModel):
    stats: DspineStats | None = None
    tokens: list[TokenOrigin] | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """As the vocabulary has them, where they were asked for."""


class DetokenizeAnswer(BaseModel):
    prompt: str


class CalledFunction(BaseModel):
    name: str
    arguments: str
    """JSON text."""


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(BaseModel):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class ChatChoice(BaseModel):
    index: int
    message: ChatAnswer
    finish_reason: str | None
    logprobs: ChatLogprobs | None
    token_ids: list[int] | None = None
    dspine: DspineAnswer | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | None = None


class CalledFunctionDelta(BaseModel):
    name: str = ""
    """With the first delta of a call."""
    arguments: str
    """More of the JSON text."""


class ToolCallDelta(BaseModel):
    index: int
    id: str = ""
    """With the first delta of a call, as `type`."""
    type: Literal["function"] = "function"
    function: CalledFunctionDelta


class ChatDelta(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    finish_reason: str | None
    logprobs: ChatLogprobs | None
    token_ids: list[int] | None = None
    dspine: DspineAnswer | None = None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | None
    prompt_token_ids: list[int] | None = None
    """In the first event."""


class TextChoice(BaseModel):
    index: int
    text: str
    finish_reason: str | None
    logprobs: TextLogprobs | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """In the first event of a choice."""
    dspine: DspineAnswer | None = None


class TextCompletion(BaseModel):
    """A whole text completion, and one event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody | None
