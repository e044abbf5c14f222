"""What clients of `/v1/responses` receive. Written with `exclude_unset`, as all answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from dspine_cluster.api.answering.sse import NamedEvent
from dspine_cluster.api.bodies import ChosenLogprob, DspineAnswer

Status = Literal["in_progress", "completed", "incomplete", "failed"]
"""Items do not fail."""


class ContentPart(BaseModel):
    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[None] = []
    """Of texts: none."""
    logprobs: list[ChosenLogprob] = []
    """Of texts, where they were asked for."""


class OutputItem(BaseModel):
    """A message, reasoning or a function call."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[ContentPart] = []
    summary: list[None] = []
    """Of reasoning: none."""
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: Literal[0] = 0
    """Every prompt is cached; nothing is charged for it."""


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int
    """0 where they cannot be told from the others."""
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class FailureDetails(BaseModel):
    code: FailureCode
    message: str


class ResponseBody(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None = None
    """Of complete answers, as `created_at` seconds since 1970."""
    status: Status
    background: Literal[False]
    error: FailureDetails | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    dspine: DspineAnswer | None = None
    """Where it was asked for, when the answer has ended."""


class EventTopLogprob(BaseModel):
    token: str
    logprob: float


class EventLogprob(EventTopLogprob):
    """As events have it: without bytes, which come with the whole text."""

    top_logprobs: list[EventTopLogprob]


class ResponseEvent(NamedEvent):
    """One event of a streamed response; each type sets its own fields."""

    sequence_number: int
    response: ResponseBody | None = None
    output_index: int = 0
    item_id: str = ""
    item: OutputItem | None = None
    content_index: int = 0
    part: ContentPart | None = None
    delta: str = ""
    text: str = ""
    name: str = ""
    arguments: str = ""
    logprobs: list[EventLogprob] | None = None
    """Of texts; none where they were not asked for."""
