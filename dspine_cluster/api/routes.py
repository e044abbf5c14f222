"""The HTTP application: routes, validation before work, and the choice between whole and streamed answers."""

from __future__ import annotations

import time
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware

from dspine_cluster.api import errors
from dspine_cluster.api.answering import sse
from dspine_cluster.api.answering.answer_parser import AnswerFormat
from dspine_cluster.api.answering.answers import AnswerHead, Outputs
from dspine_cluster.api.answering.chat import StartedChat, chat_events, whole_chat
from dspine_cluster.api.answering.choice_details import AnswerOptions
from dspine_cluster.api.answering.completions import CompletionPrompt, prompts_alone, text_events, whole_text
from dspine_cluster.api.answering.sse import EventStream
from dspine_cluster.api.bad_words import encode_bad_words
from dspine_cluster.api.bodies import ChatCompletion, TextCompletion
from dspine_cluster.api.errors import install_error_handlers
from dspine_cluster.api.generation import Generator
from dspine_cluster.api.guarding.admission import Admission
from dspine_cluster.api.guarding.answer_counter import AnswerCounter
from dspine_cluster.api.guarding.key_guard import KeyGuard
from dspine_cluster.api.guarding.keys import ApiKeys
from dspine_cluster.api.guarding.request_guard import RequestGuard
from dspine_cluster.api.guarding.strict_json import StrictJsonRoute
from dspine_cluster.api.http_config import HttpConfig
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.model_routes import add_model_routes, check_model
from dspine_cluster.api.option_checks import check_options
from dspine_cluster.api.prompting.chat_template import ChatTokenizer, EncodedPrompt
from dspine_cluster.api.prompting.prompts import echoed_texts, encode_prompts
from dspine_cluster.api.request_tracing import RequestTracer
from dspine_cluster.api.responses_api.routes import add_responses_route
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.api.structured.output_grammar import AnswerForm, chat_grammar, text_grammar
from dspine_cluster.api.tokenize_routes import add_tokenize_routes
from dspine_cluster.api.tool_calling.tools import offered_tools, parameter_types, with_allowed_tools
from dspine_cluster.api.translate import generate_requests
from dspine_cluster.api.unsupported import check_extra_fields
from dspine_cluster.observability.tracing import NO_TRACING, Tracing
from dspine_cluster.types import OutputGrammar


def create_app(
    generator: Generator,
    tokenizer: ChatTokenizer,
    model_name: str,
    limits: ApiLimits,
    http: HttpConfig | None = None,
    admission: Admission | None = None,
    tracing: Tracing = NO_TRACING,
) -> FastAPI:
    """The OpenAI-compatible interface to one model. Every error is answered in OpenAI's shape.

    Raises:
        ConfigError: the API keys that `http` names are wrong.
    """
    http = http or HttpConfig()
    admitted = admission or Admission(http.max_open_requests, http.max_waiting_tokens)
    app = FastAPI(
        title="dspine_cluster",
        version=version("dspine-cluster"),
        docs_url=None,
        redoc_url=None,
        responses=errors.DOCUMENTED,
    )
    app.router.route_class = StrictJsonRoute
    app.add_middleware(RequestGuard, max_body_bytes=limits.max_body_bytes, body_timeout_s=http.body_timeout_s)
    if tracing.is_on:
        app.add_middleware(RequestTracer, tracing=tracing, model_name=model_name)
    app.add_middleware(KeyGuard, keys=ApiKeys.of(http, time.monotonic()))
    if http.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=http.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("Retry-After",),
        )
    app.add_middleware(AnswerCounter, metrics=admitted.metrics, routes=app.routes)
    install_error_handlers(app)
    add_model_routes(app, model_name, limits)
    add_tokenize_routes(app, tokenizer, model_name, limits)

    def check(body: ChatCompletionRequest | CompletionRequest) -> None:
        check_model(body.model, model_name)
        check_extra_fields(body)
        check_options(body)

    async def start(
        body: ChatCompletionRequest | CompletionRequest,
        head: AnswerHead,
        prompts: list[EncodedPrompt],
        grammar: OutputGrammar | None,
    ) -> Outputs:
        return admitted.run(
            generator,
            generate_requests(
                body, head.id, prompts, limits, grammar, await encode_bad_words(body, tokenizer, limits)
            ),
        )

    async def start_chat(body: ChatCompletionRequest, head: AnswerHead) -> StartedChat:
        check(body)
        tools = offered_tools(body)
        [prompt] = await encode_prompts(body, tokenizer, limits, tools)
        answer_format = AnswerFormat(
            thinking=prompt.thinking,
            tools=parameter_types(tools) if tools else None,
            call_forms=tokenizer.call_forms,
            parallel_calls=body.parallel_tool_calls is not False,
            reasoning_end_id=tokenizer.reasoning_end_id,
        )
        form = AnswerForm(prompt.thinking, tokenizer.knows_reasoning, tokenizer.call_forms[0])
        outputs = await start(body, head, [prompt], await chat_grammar(body, tools, form))
        return StartedChat(outputs, answer_format, prompt.token_ids)

    add_responses_route(app, model_name, start_chat, tokenizer.token_bytes, http.keep_alive_s)

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=sse.DOCUMENTED)
    async def create_chat_completion(body: ChatCompletionRequest) -> Response:
        head = AnswerHead.new(model_name, "chatcmpl-")
        chat = await start_chat(with_allowed_tools(body), head)
        options = AnswerOptions.of(body, tokenizer.token_bytes)
        if body.stream:
            return await EventStream.open(chat_events(head, chat, options), http.keep_alive_s)
        return _json(await whole_chat(head, chat, options))

    @app.post("/v1/completions", response_model=TextCompletion, responses=sse.DOCUMENTED)
    async def create_completion(body: CompletionRequest) -> Response:
        head = AnswerHead.new(model_name, "cmpl-")
        check(body)
        encoded = await encode_prompts(body, tokenizer, limits)
        outputs = await start(body, head, encoded, await text_grammar(body))
        echoes = await echoed_texts(body, tokenizer) if body.echo else [None] * len(encoded)
        prompts = [
            CompletionPrompt(prompt.token_ids, echo) for prompt, echo in zip(encoded, echoes, strict=True)
        ]
        if body.max_tokens == 0:
            outputs = prompts_alone(outputs)
        options = AnswerOptions.of(body, tokenizer.token_bytes)
        if body.stream:
            events = text_events(head, outputs, options, prompts)
            return await EventStream.open(events, http.keep_alive_s)
        return _json(await whole_text(head, outputs, options, prompts))

    @app.get("/health")
    async def health() -> JSONResponse:
        await generator.check_health()
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> JSONResponse:
        await generator.check_ready()
        admitted.check_open()
        return JSONResponse({"status": "ready"})

    return app


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")
