"""ASGI middleware: a span for each request for a completion, which the spans of its completions lie below."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspine_cluster.api.answering.answers import Outputs
from dspine_cluster.api.generation import Generator, generate_all
from dspine_cluster.observability.tracing import Attributes, Span, Tracing, kind_of
from dspine_cluster.types import GenerateRequest, RoundOutput, Usage

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}
"""By path, in the words of OpenTelemetry's conventions for generative AI."""
_PROVIDER = "dspine"
_SERVER_ERROR = 500


class RequestTrace:
    """What is known of one request. No text of it is told, nor any error message, which may quote it."""

    def __init__(self, span: Span) -> None:
        self._span = span

    async def follow(self, generator: Generator, requests: Sequence[GenerateRequest]) -> Outputs:
        """`generate_all` of the requests, of which the trace tells."""
        self._span.note(_asked(requests))
        completions = [_Completion() for _ in requests]
        traced = [replace(request, traceparent=self._span.traceparent) for request in requests]
        try:
            async with aclosing(generate_all(generator, traced)) as outputs:
                async for index, output in outputs:
                    completions[index].push(output)
                    yield index, output
        except BaseException as error:
            if not all(completion.has_ended for completion in completions):
                self._span.fail(kind_of(error))
            raise
        finally:
            self._span.note(_given(requests, completions))


current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
"""Of the request that is being answered; None where it is not traced."""


class RequestTracer:
    """Other requests, such as those of orchestrators, are not traced."""

    def __init__(self, app: ASGIApp, tracing: Tracing, model_name: str) -> None:
        self._app = app
        self._tracing = tracing
        self._model_name = model_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _OPERATIONS:
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        attributes = {
            "http.request.method": "POST",
            "http.route": path,
            "url.path": path,
            "url.scheme": scope["scheme"],
            "gen_ai.operation.name": _OPERATIONS[path],
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.request.model": self._model_name,
        }
        span = self._tracing.begin_trace(f"POST {path}", Headers(scope=scope), attributes)
        status: int | None = None

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = current_trace.set(RequestTrace(span))
        try:
            await self._app(scope, receive, watched_send)
            if status is None:
                span.fail("aborted")
        except BaseException as error:
            span.fail(kind_of(error))
            raise
        finally:
            current_trace.reset(token)
            if status is not None:
                span.note({"http.response.status_code": status})
                if status >= _SERVER_ERROR:
                    span.fail(str(status))
            span.end()


class _Completion:
    def __init__(self) -> None:
        self.usage = Usage()
        self.num_committed = 0
        """Tokens of rounds; the one that a prefill yields belongs to none."""
        self.finish_reason: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None

    def push(self, output: RoundOutput) -> None:
        if output.usage.num_rounds > self.usage.num_rounds:
            self.num_committed += len(output.token_ids)
        self.usage, self.finish_reason = output.usage, output.finish_reason


def _asked(requests: Sequence[GenerateRequest]) -> Attributes:
    """Completions of one request differ in their seeds and prompts alone."""
    sampling = requests[0].sampling
    attributes: dict[str, str | int | float] = {
        "gen_ai.response.id": requests[0].request_id.rpartition("-")[0],
        "gen_ai.request.choice.count": len(requests),
        "gen_ai.request.max_tokens": requests[0].stop.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.usage.input_tokens": sum(len(request.prompt_ids) for request in _firsts(requests).values()),
    }
    if sampling.top_k:
        attributes["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None:
        attributes["gen_ai.request.seed"] = sampling.seed
    return attributes


def _given(requests: Sequence[GenerateRequest], completions: Sequence[_Completion]) -> Attributes:
    usages = [completion.usage for completion in completions]
    num_rounds = sum(usage.num_rounds for usage in usages)
    firsts = {id(request) for request in _firsts(requests).values()}
    attributes: dict[str, int | float | Sequence[str]] = {
        "gen_ai.usage.output_tokens": sum(usage.output_tokens for usage in usages),
        "gen_ai.response.finish_reasons": [own.finish_reason for own in completions if own.finish_reason],
        "dspine.cached_tokens": sum(
            usage.cached_prompt_tokens
            for request, usage in zip(requests, usages, strict=True)
            if id(request) in firsts
        ),
        "dspine.rounds": num_rounds,
    }
    if num_rounds:
        attributes["dspine.acceptance_length"] = sum(own.num_committed for own in completions) / num_rounds
    return attributes


def _firsts(requests: Sequence[GenerateRequest]) -> dict[int, GenerateRequest]:
    """The first request of each prompt: what all completions of a prompt have in common counts once."""
    return {id(request.prompt_ids): request for request in reversed(requests)}
