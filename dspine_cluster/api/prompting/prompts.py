"""The prompts of a request as token ids."""

from __future__ import annotations

from collections.abc import Sequence

from dspine_cluster.api.chat_schema import Tool
from dspine_cluster.api.limits import ApiLimits, check_num_completions
from dspine_cluster.api.prompting.chat_template import ChatTokenizer, EncodedPrompt
from dspine_cluster.api.request_fields import Prompts
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.errors import RequestError


async def encode_prompts(
    body: ChatCompletionRequest | CompletionRequest,
    tokenizer: ChatTokenizer,
    limits: ApiLimits,
    tools: Sequence[Tool] = (),
) -> list[EncodedPrompt]:
    """One prompt of a chat, which tells of `tools`; one or more of a text completion.

    Ids that the client sent are taken as they are.

    Raises:
        RequestError: more completions are asked for than the limits allow, or a prompt cannot be made, or has so many
            bytes that no encoding of it could fit; such a prompt is not encoded.
    """
    prompts = [] if isinstance(body, ChatCompletionRequest) else _split(body.prompt)
    num_prompts = max(len(prompts), 1)
    check_num_completions(body.num_choices * num_prompts, num_prompts, limits.max_choices)
    max_len = limits.max_model_len_tokens
    if isinstance(body, ChatCompletionRequest):
        return [await tokenizer.encode_chat(body.messages, body.template_kwargs, tools, max_len)]
    return [
        await tokenizer.encode_text(
            prompt, add_special_tokens=body.add_special_tokens is not False, max_model_len_tokens=max_len
        )
        if isinstance(prompt, str)
        else EncodedPrompt(tuple(prompt))
        for prompt in prompts
    ]


async def echoed_texts(body: CompletionRequest, tokenizer: ChatTokenizer) -> list[str]:
    """The prompts as texts, those that were sent as ids with special tokens."""
    return [
        prompt if isinstance(prompt, str) else await tokenizer.decode(prompt)
        for prompt in _split(body.prompt)
    ]


def _split(prompt: Prompts) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt: the list is empty.", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    id_lists = [item for item in prompt if isinstance(item, list)]
    token_ids = [item for item in prompt if isinstance(item, int)]
    return [token_ids] if token_ids else [*texts, *id_lists]
