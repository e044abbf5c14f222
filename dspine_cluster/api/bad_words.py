"""Words that a client does not want to read, as the tokens that would write them."""

from __future__ import annotations

from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.schema import SamplingOptions
from dspine_cluster.errors import RequestError

BadWords = tuple[tuple[int, ...], ...]


async def encode_bad_words(body: SamplingOptions, tokenizer: ChatTokenizer, limits: ApiLimits) -> BadWords:
    """Each word at a text's beginning, and behind a space where that is another token, as vLLM takes them.

    Raises:
        RequestError: there are too many, or they are too long, or one is no word.
    """
    words = body.bad_words or []
    if len(words) > limits.max_bad_words:
        raise RequestError(f"bad_words: at most {limits.max_bad_words} are allowed.", param="bad_words")
    if any(not word.strip() or len(word) > limits.max_stop_chars for word in words):
        raise RequestError(
            f"bad_words: words must have between 1 and {limits.max_stop_chars} characters, and not spaces alone.",
            param="bad_words",
        )
    encoded = await tokenizer.encode_words([text for word in words for text in _forms(word)])
    found: list[tuple[int, ...]] = []
    for bare, spaced in zip(encoded[::2], encoded[1::2], strict=True):
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    return tuple(dict.fromkeys(found))


def _forms(word: str) -> tuple[str, str]:
    return word.lstrip(), f" {word.lstrip()}"
