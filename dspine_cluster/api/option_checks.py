"""Options that contradict each other."""

from __future__ import annotations

from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.errors import RequestError


def check_options(body: ChatCompletionRequest | CompletionRequest) -> None:
    """Raises RequestError, which names the option to change."""
    constrains = body.response_format is not None and body.response_format.type != "text"
    if body.allowed_token_ids is not None and (constrains or body.structured_outputs is not None):
        raise RequestError(
            "allowed_token_ids: structured output says itself what may come; leave one of them out.",
            param="allowed_token_ids",
        )
    if isinstance(body, ChatCompletionRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("top_logprobs: needs logprobs to be true.", param="top_logprobs")
        return
    if body.best_of not in (None, 1, body.num_choices):
        raise RequestError(
            f"best_of: completions are not ranked by this server; leave it out, or set it to n, {body.num_choices}.",
            param="best_of",
            code="unsupported_parameter",
        )
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens: 0 is for prompts that are echoed; set echo.", param="max_tokens")
