"""Many streams at once, and what each came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import openai

from tests.serve.stories import MAX_TOKENS, Story

TIMEOUT_S = 400.0


@dataclass(frozen=True)
class Burst:
    """Streams that run."""

    futures: list[Future[str]]

    def texts(self) -> list[str]:
        """All texts, once all have ended.

        Raises:
            openai.APIError: a stream ended with an error.
        """
        return [future.result(TIMEOUT_S) for future in self.futures]

    def errors(self) -> list[openai.APIError]:
        """Of those streams that ended with one, once all have ended."""
        found = [future.exception(TIMEOUT_S) for future in self.futures]
        errors = [error for error in found if isinstance(error, openai.APIError)]
        assert len(errors) == len(found) - found.count(None), found
        return errors


@contextmanager
def streaming(url: str, stories: Sequence[Story]) -> Iterator[Burst]:
    """A stream for each story. All have begun when the context is entered."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(len(stories)) as pool,
    ):
        begun = [Event() for _ in stories]
        futures = [
            pool.submit(_stream, client, story, event) for story, event in zip(stories, begun, strict=True)
        ]
        for event in begun:
            if not event.wait(TIMEOUT_S):
                raise TimeoutError("a stream did not begin")
        yield Burst(futures)


@contextmanager
def streaming_again_and_again(url: str, stories: Sequence[Story]) -> Iterator[list[tuple[Story, str]]]:
    """A stream for each story, and another one whenever it has ended; gives what was told so far. The last ones end
    before the context does.

    Raises:
        openai.APIError: a stream ended with an error.
    """
    told: list[tuple[Story, str]] = []
    is_over = Event()

    def tell(client: openai.OpenAI, story: Story) -> None:
        while not is_over.is_set():
            told.append((story, _stream(client, story, Event())))

    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(len(stories)) as pool,
    ):
        futures = [pool.submit(tell, client, story) for story in stories]
        try:
            yield told
        finally:
            is_over.set()
        for future in futures:
            future.result(TIMEOUT_S)


def _stream(client: openai.OpenAI, story: Story, begun: Event) -> str:
    text = ""
    try:
        stream = client.chat.completions.create(
            model="miniature",
            messages=[{"role": "user", "content": story.prompt}],
            max_tokens=MAX_TOKENS,
            temperature=0 if story.seed is None else 1,
            seed=story.seed,
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
