from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dspine_cluster.core.cluster_records import DrafterRecord
from dspine_serve.directory import Directory
from dspine_serve.discovery import announce, follow

RECORD = DrafterRecord("a", "n1", ("unix:/a",), (), "epoch")


class Response:
    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call.__await__()

    def cancel(self) -> None:
        self._call.close()


class Method:
    def __init__(self, handle: DirectoryHandle, name: str) -> None:
        self._handle = handle
        self._name = name

    def remote(self, *args: Any) -> Response:
        if self._handle.directory is None:
            self._handle.num_failed += 1
            raise ConnectionError("no replica")
        self._handle.num_calls += 1
        return Response(getattr(self._handle.directory, self._name)(*args))


class DirectoryHandle:
    """Calls a directory of this process; without one, calls fail."""

    def __init__(self) -> None:
        self.directory: Directory | None = Directory()
        self.num_calls = 0
        self.num_failed = 0

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    async def lose_directory_then_restart_empty(self) -> Directory:
        """Until the new one has been called often enough to know what there is to know."""
        self.directory = None
        await until(lambda: self.num_failed >= 2)
        self.directory = Directory()
        num_calls = self.num_calls
        await until(lambda: self.num_calls >= num_calls + 3)
        return self.directory


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


async def test_a_verifier_hears_of_a_drafter() -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    async with running(announce(handle, RECORD, 0.01), follow(handle, "n1", heard.append, 0.01)):
        await until(lambda: bool(heard))
    assert heard == [["unix:/a"]]


async def test_a_drafter_registers_again_after_the_directory_was_lost() -> None:
    handle = DirectoryHandle()
    async with running(announce(handle, RECORD, 0.01)):
        await until(lambda: handle.num_calls >= 3)
        directory = await handle.lose_directory_then_restart_empty()
    assert (await directory.choose_drafters("n1")).endpoints == ("unix:/a",)


async def test_drafters_stay_while_the_directory_is_lost_and_restarts() -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    assert handle.directory is not None
    await handle.directory.register(RECORD)
    async with running(follow(handle, "n1", heard.append, 0.01)):
        await until(lambda: bool(heard))
        await handle.lose_directory_then_restart_empty()
    assert heard == [["unix:/a"]]
