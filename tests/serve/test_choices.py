from __future__ import annotations

from typing import Any, NoReturn

import pytest

from dspine_cluster.errors import EngineStoppedError, OverloadedError
from dspine_serve.choices import Choices
from dspine_serve.placing import Placing, RefusedError


class Waits(Placing):
    """Counts how often a change of the picture is awaited; each takes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(lambda _: None, clock=lambda: self.now_s)

    async def changed(self, timeout_s: float) -> None:
        self.now_s += 1.0


def choices(placing: Waits, **options: Any) -> Choices:
    return Choices(placing, clock=lambda: placing.now_s, **options)


async def refuse_until_it_gives_up(tried: Choices, refused: RefusedError) -> NoReturn:
    while True:
        await tried.after(refused)


async def test_up_to_three_are_asked_without_waiting() -> None:
    placing = Waits()
    tried = choices(placing, is_resumed=False)
    for name in "ab":
        await tried.after(RefusedError(name, "unknown"))
        assert placing.now_s == 0
    assert tried.exclude == {"a", "b"}
    await tried.after(RefusedError("c", "unknown"))
    assert placing.now_s == 1
    assert tried.exclude == frozenset()


async def test_shunned_replicas_are_excluded() -> None:
    placing = Waits()
    placing.shun("z")
    assert choices(placing, is_resumed=False).exclude == {"z"}


@pytest.mark.parametrize(
    "refusals",
    [
        [RefusedError("", "no_room", is_full=True)],
        [RefusedError("a", "full", is_full=True), RefusedError("", "excluded")],
        [RefusedError("a", "full", is_full=True), RefusedError("b", "unknown"), RefusedError("c", "unknown")],
    ],
)
async def test_a_new_request_without_room_is_overload_at_once(refusals: list[RefusedError]) -> None:
    placing = Waits()
    tried = choices(placing, is_resumed=False)
    for refused in refusals[:-1]:
        await tried.after(refused)
    with pytest.raises(OverloadedError):
        await tried.after(refusals[-1])
    assert placing.now_s == 0


@pytest.mark.parametrize(("is_full", "expected"), [(False, EngineStoppedError), (True, OverloadedError)])
async def test_a_request_that_has_begun_waits_longer_and_for_room_too(
    is_full: bool, expected: type[Exception]
) -> None:
    waited_s = {}
    for is_resumed in (False, True):
        placing = Waits()
        tried = choices(placing, is_resumed=is_resumed)
        with pytest.raises(expected):
            await refuse_until_it_gives_up(tried, RefusedError("", "none", is_full=is_full))
        waited_s[is_resumed] = placing.now_s
    assert waited_s == {False: 0 if is_full else 5, True: 30}


async def test_room_that_lacked_once_is_forgotten_after_a_wait() -> None:
    placing = Waits()
    tried = choices(placing, is_resumed=True)
    await tried.after(RefusedError("", "no_room", is_full=True))
    with pytest.raises(EngineStoppedError):
        await refuse_until_it_gives_up(tried, RefusedError("", "no_verifier"))
