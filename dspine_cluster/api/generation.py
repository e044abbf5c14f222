"""What the HTTP interface needs of the part that generates, and how several generations become one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from dspine_cluster.errors import EngineStoppedError
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput


class Generator(Protocol):
    """A verifier, or a route to verifiers."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        """Yields one item a round; closing or cancelling it aborts the request."""
        ...

    async def check_health(self) -> None:
        """Raises EngineStoppedError when no verifier lives, as far as is known. It does not depend on the load."""
        ...

    async def check_ready(self) -> None:
        """Raises EngineStoppedError, or OverloadedError, when no verifier takes a request now."""
        ...


async def generate_all(
    generator: Generator, requests: Sequence[GenerateRequest]
) -> AsyncGenerator[tuple[int, RoundOutput], None]:
    """Runs `requests` at the same time and yields (index, output) in the order of arrival.

    Closing it, or a failure of one request, aborts all.
    """
    if len(requests) == 1:
        async with aclosing(_checked(generator, requests[0])) as outputs:
            async for output in outputs:
                yield 0, output
        return
    # One slot a request: a slow client slows its generations instead of filling memory.
    arrived: asyncio.Queue[tuple[int, RoundOutput] | Exception | None] = asyncio.Queue(maxsize=len(requests))

    async def forward(index: int) -> None:
        try:
            async with aclosing(_checked(generator, requests[index])) as outputs:
                async for output in outputs:
                    await arrived.put((index, output))
        except Exception as error:
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(forward(index)) for index in range(len(requests))]
    try:
        num_running = len(requests)
        while num_running:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _checked(generator: Generator, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
    """The outputs of one request; raises EngineStoppedError unless they end with a reason a client may see."""
    finish_reason = None
    async with aclosing(generator.generate(request)) as outputs:
        async for output in outputs:
            finish_reason = output.finish_reason
            if finish_reason is FinishReason.ABORT:
                break
            yield output
    if finish_reason in (None, FinishReason.ABORT):
        raise EngineStoppedError("the generation was cut off; send the request again")
