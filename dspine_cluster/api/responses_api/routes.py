"""`/v1/responses`: OpenAI's newer interface, on the generation of chats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.responses import Response

from dspine_cluster.api.answering import sse
from dspine_cluster.api.answering.answers import AnswerHead
from dspine_cluster.api.answering.chat import StartedChat
from dspine_cluster.api.answering.sse import EventStream
from dspine_cluster.api.responses_api.answer import response_events, whole_response
from dspine_cluster.api.responses_api.bodies import ResponseBody
from dspine_cluster.api.responses_api.schema import ResponseRequest
from dspine_cluster.api.responses_api.translate import chat_of, renamed
from dspine_cluster.api.schema import ChatCompletionRequest
from dspine_cluster.errors import RequestError
from dspine_cluster.token_bytes import TokenBytes

StartChat = Callable[[ChatCompletionRequest, AnswerHead], Awaitable[StartedChat]]


def add_responses_route(
    app: FastAPI, model_name: str, start_chat: StartChat, token_bytes: TokenBytes, keep_alive_s: float
) -> None:
    """`start_chat` checks a chat and begins its generation; silent streams get a comment every `keep_alive_s`."""

    @app.post("/v1/responses", response_model=ResponseBody, responses=sse.DOCUMENTED)
    async def create_response(body: ResponseRequest) -> Response:
        head = AnswerHead.new(model_name, "resp_")
        asked = chat_of(body)
        try:
            chat = await start_chat(asked, head)
        except RequestError as error:
            raise renamed(error) from error
        if body.stream:
            return await EventStream.open(response_events(head, body, chat, token_bytes), keep_alive_s)
        answer = await whole_response(head, body, chat, token_bytes)
        return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")
