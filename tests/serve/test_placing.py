from __future__ import annotations

import asyncio
from random import Random

import pytest

from dspine_cluster.core.cluster_records import ReplicaDelta, ReplicaLoad
from dspine_cluster.core.placement import PlacementRequest, Placer
from dspine_serve import placing
from dspine_serve.pins import Pin
from dspine_serve.placing import Placing, RefusedError
from tests.serve.fake_verifiers import Picture


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_DOUBT_S", 0.1)


class Ingress:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.reported_dead: list[str] = []
        self.placing = Placing(self.reported_dead.append, Placer(random=Random(0)), lambda: self.now_s)
        self.picture = Picture(self.placing)


def request(uid: str = "1", exclude: frozenset[str] = frozenset()) -> PlacementRequest:
    return PlacementRequest(uid, 100, exclude=exclude)


async def test_a_place_is_a_verifier_with_the_drafter_on_its_node() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()) as place:
        assert place.pin == Pin("a")
        assert place.drafter_endpoints == ("unix:/a",)
    stats = ingress.placing.stats()
    assert stats["placements_total{reason=least_loaded}"] == 1
    assert stats["colocated_placements_total"] == 1


async def test_a_reservation_lasts_until_the_verifier_counts_the_request_itself() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()):
        assert ingress.placing.stats()["reservations"] == 1
        ingress.picture.tell(ReplicaDelta("a", "1", 1, ReplicaLoad(1), admitted=("1",), is_snapshot=True))
        assert ingress.placing.stats()["reservations"] == 0
        assert ingress.placing.stats()["open_streams"] == 1


async def test_what_ends_in_an_error_is_released() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with pytest.raises(ZeroDivisionError), ingress.placing.place(request()):
        raise ZeroDivisionError
    assert ingress.placing.stats()["reservations"] == ingress.placing.stats()["open_streams"] == 0


@pytest.mark.parametrize(("max_requests", "is_full"), [(0, True), (1, False)])
async def test_a_refusal_says_whether_room_is_what_lacks(max_requests: int, is_full: bool) -> None:
    ingress = Ingress()
    ingress.picture.add("a", max_requests=max_requests)
    exclude = frozenset[str]() if is_full else frozenset({"a"})
    with pytest.raises(RefusedError) as caught, ingress.placing.place(request(exclude=exclude)):
        pass
    assert caught.value.is_full == is_full
    assert caught.value.replica_id == ""


async def test_while_no_verifier_is_known_it_is_any_that_is_not_excluded() -> None:
    ingress = Ingress()
    with ingress.placing.place(request(exclude=frozenset({"a"}))) as place:
        assert place.pin == Pin(exclude=frozenset({"a"}))


async def test_streams_are_given_up_with_their_replica_and_with_no_other() -> None:
    ingress = Ingress()
    ingress.picture.add("a", "b")
    with (
        ingress.placing.place(request("1", frozenset({"b"}))) as gone,
        ingress.placing.place(request("2", frozenset({"a"}))) as kept,
    ):
        ingress.picture.remove("a")
        with pytest.raises(TimeoutError):
            await gone.lifeline.wait(asyncio.sleep(60))
        assert await kept.lifeline.wait(asyncio.sleep(0, "item")) == "item"
    assert ingress.reported_dead == []


async def test_a_stream_that_goes_on_while_its_replica_is_gone_from_the_picture_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "_DOUBT_S", 2.0)
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()) as place:
        ingress.picture.remove("a")
        for _ in range(22):
            assert await place.lifeline.wait(asyncio.sleep(0.1, "item")) == "item"


async def test_a_replica_that_comes_back_to_the_picture_may_be_silent_again() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()) as place:
        ingress.picture.remove("a")
        ingress.picture.add("a")
        assert await place.lifeline.wait(asyncio.sleep(0.3, "item")) == "item"


async def test_streams_of_a_replica_that_was_seen_dead_are_given_up_at_once() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()) as place:
        ingress.placing.evict("a")
        with pytest.raises(TimeoutError):
            await place.lifeline.wait(asyncio.sleep(60))


async def test_a_roster_without_a_replica_gives_its_streams_up() -> None:
    ingress = Ingress()
    ingress.picture.add("a", "b")
    with ingress.placing.place(request("1", frozenset({"b"}))) as place:
        ingress.picture.complete("b")
        with pytest.raises(TimeoutError):
            await place.lifeline.wait(asyncio.sleep(60))


async def test_a_replica_that_registers_again_keeps_its_streams() -> None:
    ingress = Ingress()
    ingress.picture.add("a")
    with ingress.placing.place(request()) as place:
        ingress.picture.add("a")
        assert await place.lifeline.wait(asyncio.sleep(0, "item")) == "item"


async def test_a_stream_on_a_replica_that_is_not_in_the_picture_yet_goes_on() -> None:
    ingress = Ingress()
    with ingress.placing.place(request()) as place:
        ingress.placing.watch(place, "a")
        ingress.picture.complete()
        assert await place.lifeline.wait(asyncio.sleep(0, "item")) == "item"
        ingress.picture.add("a")
        ingress.picture.remove("a")
        with pytest.raises(TimeoutError):
            await place.lifeline.wait(asyncio.sleep(60))


async def test_a_replica_that_was_seen_dead_is_reported_once_and_not_used_until_it_restarts() -> None:
    ingress = Ingress()
    ingress.picture.add("a", "b")
    for _ in range(2):
        ingress.placing.evict("a")
    assert ingress.reported_dead == ["a"]
    ingress.picture.add("a")  # told before the directory knew
    ingress.now_s = 100.0
    for number in range(10):
        with ingress.placing.place(request(str(number), ingress.placing.shunned)) as place:
            assert place.pin.replica_id == "b"


async def test_a_replica_is_shunned_for_a_moment() -> None:
    ingress = Ingress()
    ingress.placing.shun("a")
    assert ingress.placing.shunned == {"a"}
    ingress.now_s = 1.1
    assert ingress.placing.shunned == frozenset()


async def test_waiting_for_a_change_ends_with_the_change_or_the_time() -> None:
    ingress = Ingress()
    await ingress.placing.changed(0.01)
    waiting = [asyncio.create_task(ingress.placing.changed(3600)) for _ in range(2)]
    await asyncio.sleep(0)
    ingress.picture.add("a")
    await asyncio.gather(*waiting)
