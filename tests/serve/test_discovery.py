from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any

from dspine_cluster.core.cluster_view import DrafterRecord
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
            raise ConnectionError("no replica")
        return Response(getattr(self._handle.directory, self._name)(*args))


class DirectoryHandle:
    """Calls a directory of this process; without one, calls fail."""

    def __init__(self) -> None:
        self.directory: Directory | None = Directory()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


async def run_for(duration_s: float, *tasks: Coroutine[Any, Any, Any]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*tasks), duration_s)


async def test_a_verifier_hears_of_a_drafter() -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []
    await run_for(0.1, announce(handle, RECORD, 0.01), follow(handle, "n1", heard.append, 0.01))
    assert heard == [["unix:/a"]]


async def test_a_drafter_registers_again_after_the_directory_was_lost() -> None:
    handle = DirectoryHandle()

    async def restart() -> None:
        await asyncio.sleep(0.03)
        handle.directory = None
        await asyncio.sleep(0.03)
        handle.directory = Directory()

    await run_for(0.2, announce(handle, RECORD, 0.01), restart())
    assert handle.directory is not None
    assert (await handle.directory.choose_drafters("n1")).endpoints == ("unix:/a",)


async def test_drafters_stay_while_the_directory_is_lost_and_restarts() -> None:
    handle = DirectoryHandle()
    heard: list[list[str]] = []

    async def lose_then_restart_empty() -> None:
        await asyncio.sleep(0.05)
        handle.directory = None
        await asyncio.sleep(0.05)
        handle.directory = Directory()

    assert handle.directory is not None
    await handle.directory.register(RECORD)
    await run_for(0.2, follow(handle, "n1", heard.append, 0.01), lose_then_restart_empty())
    assert heard == [["unix:/a"]]
