"""A handle to a directory of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dspine_serve.directory import Directory


class Response:
    """Runs as a task from the call on, like a call to a replica."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(call)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._task.__await__()

    def cancel(self) -> None:
        self._task.cancel()


class Method:
    def __init__(self, handle: DirectoryHandle, name: str) -> None:
        self._handle = handle
        self._name = name

    def remote(self, *args: Any) -> Response:
        handle = self._handle
        handle.calls.append(self._name)
        if handle.directory is None:
            raise ConnectionError("no replica")
        return Response(getattr(handle.directory, self._name)(*args))


class DirectoryHandle:
    """Calls a directory of this process; without one, calls fail."""

    def __init__(self) -> None:
        self.directory: Directory | None = Directory()
        self.calls: list[str] = []

    def options(self, **options: Any) -> DirectoryHandle:
        assert options == {"_by_reference": False}
        return self

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*endless: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    together = asyncio.gather(*endless)
    yield
    together.cancel()
    with suppress(asyncio.CancelledError):
        await together
