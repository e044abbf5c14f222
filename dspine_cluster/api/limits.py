"""What the HTTP interface accepts at most."""

from __future__ import annotations

from dataclasses import dataclass

from dspine_cluster.errors import RequestError


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of one request, checked before any work is done for it."""

    max_model_len_tokens: int
    """Prompt and output tokens of one request together, as the verifier allows."""
    vocab_size: int
    """Token ids in prompts, `stop_token_ids`, `logit_bias` and `allowed_token_ids` lie below this."""
    max_body_bytes: int = 8 * 2**20
    max_choices: int = 64
    """Completions one request may ask for: prompts times `n`."""
    max_stop_strings: int = 16
    max_stop_chars: int = 512
    """Of a stop string, and of a bad word."""
    max_bad_words: int = 128


def check_num_completions(num_completions: int, num_prompts: int, most: int) -> None:
    """Raises RequestError, which names what to change, where a request asks for more than `most`."""
    if num_completions > most:
        param = "prompt" if num_prompts > 1 else "n"
        raise RequestError(
            f"{param}: {num_completions} completions are more than the {most} that a request may ask for.",
            param=param,
        )
