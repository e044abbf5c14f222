"""Sixteen streams at once, and what each came to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import openai

NUM_STREAMS = 16
MAX_TOKENS = 256
_TIMEOUT_S = 300.0
_TOPICS = ("a tiny otter", "a clever fox", "an old clock", "a busy city")


@dataclass(frozen=True)
class Burst:
    """Streams that run."""

    futures: list[Future[str]]

    @property
    def num_running(self) -> int:
        return sum(not future.done() for future in self.futures)

    def texts(self) -> list[str]:
        """All texts, once all have ended.

        Raises:
            openai.APIError: a stream ended with an error.
        """
        return [future.result(_TIMEOUT_S) for future in self.futures]

    def errors(self) -> list[openai.APIError]:
        """The errors of those streams that ended with one, once all have ended."""
        found = [future.exception(_TIMEOUT_S) for future in self.futures]
        return [error for error in found if isinstance(error, openai.APIError)]


@contextmanager
def streaming(url: str) -> Iterator[Burst]:
    """Half of the streams are greedy, half are sampled with a seed. All have begun when the context is entered."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_TIMEOUT_S) as client,
        ThreadPoolExecutor(NUM_STREAMS) as pool,
    ):
        begun = [Event() for _ in range(NUM_STREAMS)]
        futures = [pool.submit(_stream, client, number, event) for number, event in enumerate(begun)]
        for future, event in zip(futures, begun, strict=True):
            if not event.wait(_TIMEOUT_S):
                raise TimeoutError("a stream did not begin")
            if future.done():
                future.result()
        yield Burst(futures)


def _stream(client: openai.OpenAI, number: int, begun: Event) -> str:
    is_greedy = number % 2 == 0
    prompt = f"Please write a tale, number {number}, about {_TOPICS[number % len(_TOPICS)]}."
    text = ""
    try:
        stream = client.chat.completions.create(
            model="miniature",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
            temperature=0 if is_greedy else 1,
            seed=None if is_greedy else number,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text:
                begun.set()
    finally:
        begun.set()
    return text
