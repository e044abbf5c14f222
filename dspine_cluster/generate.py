"""One generation on the terminal, round by round: the substance of `dspine generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError
from rich.console import Console
from rich.text import Text

from dspine_cluster.api.chat_schema import ChatMessage
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.config import VerifierConfig
from dspine_cluster.errors import RequestError
from dspine_cluster.local_pair import local_pair
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.sources import locate_model
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import GenerateRequest, RoundOutput, SamplingParams, StopConditions
from dspine_cluster.verifier.detokenizer import Detokenizer

OPEN, CLOSE = "⟦", "⟧"


def read_messages(path: Path) -> list[ChatMessage]:
    """The messages of a chat request stored as JSON, as one would send it over HTTP.

    Raises:
        RequestError: the file cannot be read, or holds no messages.
    """
    try:
        return _StoredRequest.model_validate_json(path.read_bytes()).messages
    except (OSError, ValidationError) as error:
        raise RequestError(f"{path} holds no chat request with messages: {error}") from error


class _StoredRequest(BaseModel):
    """The part of a chat request that is read here; sampling is set by options."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]


class RoundPrinter:
    """Writes the text of rounds with accepted proposals between marks, or in colour on a terminal."""

    def __init__(self, console: Console, detokenizer: Detokenizer) -> None:
        self._console = console
        self._detokenizer = detokenizer

    def print(self, output: RoundOutput) -> None:
        """Print a round: its accepted proposals marked, then the target's own token."""
        accepted = self._detokenizer.push(output.token_ids[: output.accepted_tokens]).text
        own = self._detokenizer.push(output.token_ids[output.accepted_tokens :]).text
        if accepted and self._console.is_terminal:
            self._console.print(Text(accepted, style="black on green"), end="")
        elif accepted:
            self._console.print(Text(OPEN + accepted + CLOSE), end="")
        self._console.print(Text(own), end="")

    def finish(self) -> None:
        self._console.print(Text(self._detokenizer.flush()))


async def print_generation(
    console: Console,
    config: VerifierConfig,
    prompt: str | Sequence[ChatMessage],
    *,
    max_tokens: int,
    temperature: float,
    seed: int | None,
) -> None:
    """Generate with a pair in this process and print it as it comes, then what the rounds gave.

    `prompt` is a text to continue, or messages to answer.

    Raises:
        ConfigError, CheckpointError, MismatchError, RequestError: the pair or the prompt cannot be used.
    """
    folder = locate_model(config.target)
    tokenizer = ChatTokenizer.from_folder(folder)
    encoding = tokenizer.encode_text(prompt) if isinstance(prompt, str) else tokenizer.encode_chat(prompt, {})
    request = GenerateRequest(
        request_id="generate",
        prompt_ids=(await encoding).token_ids,
        sampling=SamplingParams(temperature=temperature, seed=seed),
        stop=StopConditions(max_tokens=max_tokens),
    )
    printer = RoundPrinter(
        console, Detokenizer(TokenBytes(load_tokenizer(folder)), skip_special_tokens=False)
    )
    with local_pair(config) as verifier:
        started_s = time.perf_counter()
        first_s = None
        async for output in verifier.generate(request):
            first_s = first_s or time.perf_counter()
            printer.print(output)
        ended_s = time.perf_counter()
    printer.finish()
    usage = output.usage
    length = 1 + usage.accepted_tokens / max(1, usage.num_rounds)
    decode_s = max(ended_s - (first_s or started_s), 1e-9)
    console.print(
        f"\n{usage.output_tokens} tokens in {usage.num_rounds} rounds, acceptance length {length:.2f}, "
        f"{(usage.output_tokens - 1) / decode_s:.0f} tokens/s, ended by {output.finish_reason}",
        style="dim",
    )
