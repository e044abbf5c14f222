"""The router, in a small application of real Serve: two replicas of plain Python behind a parent that calls them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router import PendingRequest
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from dspine_serve.pins import Pin, PinRefusal, PinRefusedError
from dspine_serve.router import PinnedRouter

pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]

APP = "router"
MAX_CALLS = 8
AT_ONCE_S = 5.0
"""Of a machine whose cores are busy with other things."""


class Child:
    """Says which replica it is."""

    async def count(self, num_items: int, pause_s: float = 0.0) -> AsyncGenerator[tuple[str, int], None]:
        replica_id = serve.get_replica_context().replica_id.unique_id
        for _ in range(num_items):
            yield replica_id, os.getpid()
            await asyncio.sleep(pause_s)


class Parent:
    """Calls as an ingress does: all from one request of its own."""

    def __init__(self, child: DeploymentHandle) -> None:
        self._count = child.options(method_name="count", stream=True, _by_reference=False)

    async def reached(self, pins: list[Pin]) -> list[str | PinRefusal]:
        """Which replica each call reached, or why it was refused; all calls at the same time."""
        return list(await asyncio.gather(*(self._reached(pin) for pin in pins)))

    async def _reached(self, pin: Pin) -> str | PinRefusal:
        try:
            async with self._count.choose_replica(pin) as selection:
                reached = {replica_id async for replica_id, _ in self._count.dispatch(selection, 2)}
        except PinRefusedError as error:
            return error.reason
        [replica_id] = reached
        return str(replica_id)


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    child = serve.deployment(
        Child,
        num_replicas=2,
        max_ongoing_requests=MAX_CALLS,
        request_router_config=RequestRouterConfig(request_router_class=PinnedRouter),
        ray_actor_options={"num_cpus": 0},
    )
    parent = serve.deployment(Parent, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
    serve.run(parent.bind(child.bind()), name=APP, route_prefix=None)
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def handle(running: None) -> DeploymentHandle:
    return serve.get_deployment_handle("Child", APP).options(
        method_name="count", stream=True, _by_reference=False
    )


async def replicas(handle: DeploymentHandle) -> dict[str, int]:
    """Process ids of both replicas."""
    found: dict[str, int] = {}
    deadline_s = time.monotonic() + 120
    while len(found) < 2:
        assert time.monotonic() < deadline_s
        try:
            async with calling(handle, Pin(exclude=frozenset(found)), 1) as items:
                async for replica_id, pid in items:
                    found[replica_id] = pid
        except PinRefusedError:
            await asyncio.sleep(0.1)
    return found


@asynccontextmanager
async def calling(
    handle: DeploymentHandle, pin: Pin, num_items: int, pause_s: float = 0.0
) -> AsyncIterator[AsyncIterator[Any]]:
    async with handle.choose_replica(pin) as selection:
        items = handle.dispatch(selection, num_items, pause_s)
        try:
            yield items
        finally:
            items.cancel()


async def refusal(handle: DeploymentHandle, pin: Pin) -> PinRefusal:
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(PinRefusedError) as caught:
            async with handle.choose_replica(pin):
                raise AssertionError("a replica was chosen")
    assert caught.value.replica_id == pin.replica_id
    return caught.value.reason


async def test_a_call_reaches_the_replica_that_it_is_pinned_to(handle: DeploymentHandle) -> None:
    for replica_id, pid in (await replicas(handle)).items():
        for _ in range(5):
            async with calling(handle, Pin(replica_id), 3) as items:
                assert [item async for item in items] == [(replica_id, pid)] * 3


async def test_an_unknown_replica_is_refused_at_once(handle: DeploymentHandle) -> None:
    assert await refusal(handle, Pin("nobody")) is PinRefusal.UNKNOWN


async def test_where_all_are_excluded_none_is_chosen(handle: DeploymentHandle) -> None:
    assert await refusal(handle, Pin(exclude=frozenset(await replicas(handle)))) is PinRefusal.UNKNOWN


@pytest.mark.parametrize("has_died", [False, True])
async def test_a_replica_that_stops_while_it_is_asked_is_told_from_one_that_dies(has_died: bool) -> None:
    deployment = DeploymentID("Child", APP)
    router = PinnedRouter(deployment_id=deployment, handle_source=DeploymentHandleSource.REPLICA)
    router.initialize_state()
    replica: Any = SimpleNamespace(
        replica_id=ReplicaID("a", deployment), multiplexed_model_ids=(), node_id="n", availability_zone=None
    )
    router.update_replicas([replica])
    call = PendingRequest([Pin("a")], {}, RequestMetadata("request", "internal"))
    assert await router._choose_replica_for_request(call) is replica
    if has_died:
        router.on_replica_actor_died(replica.replica_id)
    else:
        router.update_replicas([])
    with pytest.raises(PinRefusedError) as caught:
        await router._choose_replica_for_request(call, is_retry=True)
    assert caught.value.reason is (PinRefusal.DEAD if has_died else PinRefusal.UNKNOWN)


async def test_many_calls_of_one_request_all_reach_their_replicas(handle: DeploymentHandle) -> None:
    first, second = await replicas(handle)
    pins = [Pin(first), Pin("nobody"), Pin(second), Pin("nobody")] * (MAX_CALLS // 2)
    parent = serve.get_app_handle(APP)
    async with asyncio.timeout(60):
        reached = await parent.reached.remote(pins)
    assert reached == [first, PinRefusal.UNKNOWN, second, PinRefusal.UNKNOWN] * (MAX_CALLS // 2)


async def test_a_full_replica_refuses_and_the_other_goes_on(handle: DeploymentHandle) -> None:
    first, second = await replicas(handle)
    parent = serve.get_app_handle(APP)
    reached = await parent.reached.remote([Pin(first)] * 3 * MAX_CALLS + [Pin(second)] * MAX_CALLS)
    assert set(reached[: 3 * MAX_CALLS]) == {first, PinRefusal.FULL}
    assert reached[: 3 * MAX_CALLS].count(first) >= MAX_CALLS
    assert reached[3 * MAX_CALLS :] == [second] * MAX_CALLS


async def test_calls_that_are_not_pinned_still_wait_for_a_replica(handle: DeploymentHandle) -> None:
    async with asyncio.timeout(60):
        calls = [_collect(handle.remote(2, 0.01)) for _ in range(4 * MAX_CALLS)]
        assert all(len(items) == 2 for items in await asyncio.gather(*calls))


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]


async def test_calls_that_are_cancelled_anywhere_leave_the_slot_free(handle: DeploymentHandle) -> None:
    first, _ = await replicas(handle)

    async def call() -> None:
        async with calling(handle, Pin(first), 1000, 0.01) as items:
            async for _ in items:
                pass

    for number in range(40):
        task = asyncio.create_task(call())
        await asyncio.sleep(0.0005 * number)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    deadline_s = time.monotonic() + 30
    while await _num_taken(handle, first) < MAX_CALLS:
        assert time.monotonic() < deadline_s, "slots stay taken"


async def _num_taken(handle: DeploymentHandle, replica_id: str) -> int:
    """How many slots can be reserved at the same time."""
    parked, taken = asyncio.Event(), []

    async def reserve() -> None:
        try:
            async with handle.choose_replica(Pin(replica_id)):
                taken.append(True)
                await parked.wait()
        except PinRefusedError:
            taken.append(False)

    tasks = [asyncio.create_task(reserve()) for _ in range(MAX_CALLS)]
    while len(taken) < MAX_CALLS:
        await asyncio.sleep(0.01)
    parked.set()
    await asyncio.gather(*tasks)
    return sum(taken)


async def test_a_killed_replica_ends_its_call_and_refuses_new_ones(handle: DeploymentHandle) -> None:
    killed, other = await replicas(handle)
    pid = (await replicas(handle))[killed]
    async with asyncio.timeout(60), calling(handle, Pin(killed), 10_000, 0.01) as items:
        await anext(items)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RayActorError):
            async for _ in items:
                pass
    assert await refusal(handle, Pin(killed)) in (PinRefusal.DEAD, PinRefusal.UNKNOWN)
    async with calling(handle, Pin(other), 1) as items:
        assert len([item async for item in items]) == 1


async def test_a_hanging_replica_lets_its_callers_go(handle: DeploymentHandle) -> None:
    stopped, other = await replicas(handle)
    pid = (await replicas(handle))[stopped]
    async with calling(handle, Pin(stopped), 10_000, 0.01) as items:
        await anext(items)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_collect(items), 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), handle.choose_replica(Pin(stopped)):
                    pass
            async with asyncio.timeout(AT_ONCE_S), calling(handle, Pin(other), 1) as others:
                assert len([item async for item in others]) == 1
        finally:
            os.kill(pid, signal.SIGCONT)
    deadline_s = time.monotonic() + 30
    while await _num_taken(handle, stopped) < MAX_CALLS:
        assert time.monotonic() < deadline_s, "slots stay taken"
