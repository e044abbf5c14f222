"""Texts and messages to tokens, and tokens to text, in vLLM's shape."""

from __future__ import annotations

from fastapi import FastAPI

from dspine_cluster.api.bodies import DetokenizeAnswer, TokenizeAnswer
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.model_routes import check_model
from dspine_cluster.api.prompting.chat_template import ChatTokenizer, EncodedPrompt
from dspine_cluster.api.schema import DetokenizeRequest, TokenizeRequest
from dspine_cluster.api.unsupported import check_extra_fields
from dspine_cluster.errors import RequestError


def add_tokenize_routes(app: FastAPI, tokenizer: ChatTokenizer, model_name: str, limits: ApiLimits) -> None:
    """`/tokenize` and `/detokenize`."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeAnswer:
        check_model(body.model, model_name)
        check_extra_fields(body)
        token_ids = list((await _encode(body, tokenizer)).token_ids)
        return TokenizeAnswer(
            count=len(token_ids),
            max_model_len=limits.max_model_len_tokens,
            tokens=token_ids,
            token_strs=await tokenizer.token_strs(token_ids) if body.return_token_strs else None,
        )

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        check_model(body.model, model_name)
        check_extra_fields(body)
        if max(body.tokens, default=0) >= limits.vocab_size:
            raise RequestError(f"tokens: token ids must be below {limits.vocab_size}.", param="tokens")
        return DetokenizeAnswer(prompt=await tokenizer.decode(body.tokens))


async def _encode(body: TokenizeRequest, tokenizer: ChatTokenizer) -> EncodedPrompt:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError(
            "Give either prompt or messages.", param="prompt", code="missing_required_parameter"
        )
    if body.prompt is not None:
        return await tokenizer.encode_text(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    if body.add_special_tokens:
        raise RequestError(
            "add_special_tokens: the chat template of messages writes all special tokens; leave it out.",
            param="add_special_tokens",
        )
    return await tokenizer.encode_chat(body.messages or [], body.template_kwargs, body.tools or [])
