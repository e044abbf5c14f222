"""The answer to `/v1/responses`, whole or event by event."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dspine_cluster.api.answering.answer_parser import AnswerParser
from dspine_cluster.api.answering.answers import AnswerHead, total_usage
from dspine_cluster.api.answering.chat import StartedChat
from dspine_cluster.api.answering.draft_stats import DraftStats
from dspine_cluster.api.answering.token_texts import TokenNames
from dspine_cluster.api.bodies import DspineAnswer
from dspine_cluster.api.errors import describe
from dspine_cluster.api.responses_api.bodies import (
    FailureCode,
    FailureDetails,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ResponseBody,
    ResponseEvent,
    ResponseUsage,
    Status,
)
from dspine_cluster.api.responses_api.content_logprobs import ContentLogprobs
from dspine_cluster.api.responses_api.events import OutputWriter
from dspine_cluster.api.responses_api.schema import ResponseRequest
from dspine_cluster.errors import OverloadedError, RequestError
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import Usage


async def whole_response(
    head: AnswerHead, body: ResponseRequest, chat: StartedChat, token_bytes: TokenBytes
) -> ResponseBody:
    """The answer to a request that does not stream."""
    last = None
    async with aclosing(_events(head, body, chat, _writer(body, token_bytes))) as events:
        async for event in events:
            last = event.response
    assert last is not None, "the last event holds the response"
    return last


async def response_events(
    head: AnswerHead, body: ResponseRequest, chat: StartedChat, token_bytes: TokenBytes
) -> AsyncGenerator[ResponseEvent, None]:
    """OpenAI's events; the last one holds the whole answer, or what there is of it and what went wrong."""
    writer = _writer(body, token_bytes)
    has_begun = False
    try:
        async with aclosing(_events(head, body, chat, writer)) as events:
            async for event in events:
                has_begun = True
                yield event
    except Exception as error:
        if not has_begun:
            raise
        yield writer.event("failed", response=_failed(head, body, writer, error))


def _writer(body: ResponseRequest, token_bytes: TokenBytes) -> OutputWriter:
    if not body.wants_logprobs:
        return OutputWriter()
    skips = body.skip_special_tokens is not False
    return OutputWriter(ContentLogprobs(TokenNames(token_bytes), skip_special_tokens=skips))


async def _events(
    head: AnswerHead, body: ResponseRequest, chat: StartedChat, writer: OutputWriter
) -> AsyncGenerator[ResponseEvent, None]:
    parser = AnswerParser(chat.answer_format)
    stats = DraftStats() if body.dspine is not None and body.dspine.include_stats else None
    async with aclosing(chat.outputs) as outputs:
        is_first = True
        async for _, output in outputs:
            if is_first:  # what is wrong before it has a status of its own
                for kind in ("created", "in_progress"):
                    yield writer.event(kind, response=_body(head, body, "in_progress", [], None))
                is_first = False
            if stats is not None:
                stats.push(output)
            if writer.logprobs is not None:
                writer.logprobs.push(output)
            for event in writer.push(parser.push(output)):
                yield event
    status: Status = "incomplete" if parser.finish_reason == "length" else "completed"
    for event in writer.finish(status):
        yield event
    usage = _usage(parser.usage, parser.reasoning_tokens or 0)
    response = _body(head, body, status, writer.items, usage)
    if status == "completed":
        response.completed_at = int(time.time())
    if stats is not None:
        response.dspine = DspineAnswer(stats=stats.body())
    yield writer.event(status, response=response)


def _failed(head: AnswerHead, body: ResponseRequest, writer: OutputWriter, error: Exception) -> ResponseBody:
    """What there is of an answer that `error` ended."""
    told = describe(error)
    code: FailureCode = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
    if isinstance(error, RequestError):
        code = "invalid_prompt"
    for item in writer.items:
        if item.status == "in_progress":
            item.status = "incomplete"
    response = _body(head, body, "failed", writer.items, None)
    response.error = FailureDetails(code=code, message=told.message)
    return response


def _body(
    head: AnswerHead,
    body: ResponseRequest,
    status: Status,
    output: list[OutputItem],
    usage: ResponseUsage | None,
) -> ResponseBody:
    text = body.text.model_dump(exclude_none=True, by_alias=True) if body.text else {}
    choice = body.tool_choice or "auto"
    return ResponseBody(
        id=head.id,
        object="response",
        created_at=head.created,
        status=status,
        background=False,
        error=None,
        incomplete_details=IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=head.model,
        output=output,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=None,
        reasoning={"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        store=False,
        temperature=1.0 if body.temperature is None else body.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[
            {"strict": None, "parameters": None, **tool.model_dump(exclude_none=True)}
            for tool in body.tools or []
        ],
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        usage=usage,
        user=body.user,
    )


def _usage(usage: Usage, reasoning_tokens: int) -> ResponseUsage:
    total = total_usage({0: usage}, 1)
    details = total.completion_tokens_details
    return ResponseUsage(
        input_tokens=total.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=total.prompt_tokens_details.cached_tokens, cache_write_tokens=0
        ),
        output_tokens=total.completion_tokens,
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=reasoning_tokens,
            accepted_prediction_tokens=details.accepted_prediction_tokens,
            rejected_prediction_tokens=details.rejected_prediction_tokens,
        ),
        total_tokens=total.total_tokens,
    )
