from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_records import (
    ANY_MODELS,
    IDLE,
    NO_DRAFTER,
    ClusterEvent,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    Fingerprints,
    Removal,
    ReplicaDelta,
    ReplicaLoad,
    Roster,
    VerifierRecord,
)
from dspine_cluster.core.page_hash import page_keys, root_key
from dspine_cluster.core.placement import Placement, PlacementRequest, Placer, Reason, Refusal, RefusalReason

KEYS = page_keys(range(1024), root_key("target"))
DRAFT_KEYS = page_keys(range(1024), root_key("drafter"))


def verifier(
    name: str,
    node: str = "n1",
    *,
    max_requests: int = 64,
    models: Fingerprints = ANY_MODELS,
    epoch: str = "e",
) -> VerifierRecord:
    return VerifierRecord(name, node, epoch, models, max_requests)


def drafter(
    name: str, node: str = "n1", *, has_remote: bool = True, models: Fingerprints = ANY_MODELS
) -> DrafterRecord:
    return DrafterRecord(
        name, node, (f"unix:/{name}",), (f"tcp:{name}",) if has_remote else (), "e", models, 64
    )


def says(name: str, load: ReplicaLoad = IDLE, *added: bytes, admitted: tuple[str, ...] = ()) -> ReplicaDelta:
    return ReplicaDelta(name, "e", 1, load, added, admitted=admitted)


def placer(*events: ClusterEvent, seed: int = 0) -> Placer:
    made = Placer(random=Random(seed))
    tell(made, *events)
    return made


def tell(made: Placer, *events: ClusterEvent) -> None:
    made.apply(ClusterUpdates(Cursor("d", made.cursor.sequence + len(events)), events))


def request(
    uid: str = "r",
    num_tokens: int = 1030,
    *,
    exclude: frozenset[str] = frozenset(),
    models: Fingerprints = ANY_MODELS,
    substitute: Fingerprints | None = None,
) -> PlacementRequest:
    return PlacementRequest(uid, num_tokens, KEYS, DRAFT_KEYS, models, substitute, exclude)


def placed(made: Placer, asked: PlacementRequest) -> Placement:
    placement = made.choose(asked)
    assert isinstance(placement, Placement)
    return placement


def refused(made: Placer, asked: PlacementRequest) -> RefusalReason:
    refusal = made.choose(asked)
    assert isinstance(refusal, Refusal)
    return refusal.reason


def test_the_verifier_with_the_longest_restorable_prefix_is_picked() -> None:
    made = placer(verifier("a"), verifier("b"), says("a", IDLE, KEYS[9]), says("b", IDLE, KEYS[39], KEYS[5]))
    placement = placed(made, request())
    assert (placement.verifier_id, placement.cached_tokens) == ("b", 640)
    assert placement.reason is Reason.PREFIX


def test_a_cached_prefix_never_covers_the_whole_prompt() -> None:
    made = placer(verifier("a"), says("a", IDLE, KEYS[63]))
    assert placed(made, request(num_tokens=1024)).cached_tokens == 1023


def test_a_long_queue_diverts_from_a_cached_prefix() -> None:
    busy = ReplicaLoad(running_requests=20, waiting_requests=20, queued_tokens=200_000)
    made = placer(verifier("a"), verifier("b"), says("a", busy, KEYS[63]), says("b"))
    placement = placed(made, request())
    assert (placement.verifier_id, placement.reason) == ("b", Reason.DIVERTED)


def test_a_miss_goes_to_the_least_loaded() -> None:
    """FAULT 15."""
    loads = {"a": 5_000, "b": 100, "c": 2_000}
    made = placer(
        *map(verifier, loads), *(says(name, ReplicaLoad(2, 0, tokens)) for name, tokens in loads.items())
    )
    placement = placed(made, request())
    assert (placement.verifier_id, placement.reason) == ("b", Reason.LEAST_LOADED)


@given(st.integers(2, 8), st.integers(1, 6), st.integers(0, 99))
def test_a_burst_is_spread_before_any_load_is_reported(num_verifiers: int, rounds: int, seed: int) -> None:
    """FAULT 16."""
    names = [f"v{i}" for i in range(num_verifiers)]
    made = placer(*map(verifier, names), seed=seed)
    counts = Counter(
        placed(made, request(str(number))).verifier_id for number in range(rounds * num_verifiers)
    )
    assert counts == dict.fromkeys(names, rounds)


def test_equally_good_verifiers_are_picked_at_random() -> None:
    picked = Counter(
        placed(placer(*map(verifier, "abcdefgh"), seed=seed), request()).verifier_id for seed in range(200)
    )
    assert len(picked) == 8
    assert max(picked.values()) < 60


def test_a_reservation_ends_when_the_verifier_reports_the_request_or_it_is_released() -> None:
    made = placer(verifier("a", max_requests=1))
    placed(made, request("r1"))
    assert refused(made, request("r2")) is RefusalReason.NO_ROOM
    made.release("r1")
    placed(made, request("r3"))
    tell(made, says("a", IDLE, admitted=("r3",)))
    assert made.num_reservations == 0
    placed(made, request("r4"))
    made.release("r3")
    assert made.num_reservations == 1


def test_releasing_twice_frees_one_place() -> None:
    made = placer(verifier("a", max_requests=2))
    placed(made, request("r1"))
    placed(made, request("r2"))
    for _ in range(3):
        made.release("r1")
    placed(made, request("r3"))
    assert refused(made, request("r4")) is RefusalReason.NO_ROOM


def test_a_refusal_names_the_filter_that_left_nobody() -> None:
    made = placer()
    assert refused(made, request()) is RefusalReason.NO_VERIFIER
    tell(made, verifier("a", models=Fingerprints("t1", "d1", "k1")))
    assert refused(made, request(models=Fingerprints(target="t2"))) is RefusalReason.NO_FIT
    assert refused(made, request(models=Fingerprints(tokenizer="k2"))) is RefusalReason.NO_FIT
    assert refused(made, request(exclude=frozenset("a"))) is RefusalReason.EXCLUDED
    tell(made, says("a", ReplicaLoad(is_draining=True)))
    assert refused(made, request()) is RefusalReason.DRAINING
    tell(made, says("a", ReplicaLoad(running_requests=60, waiting_requests=4)))
    assert refused(made, request()) is RefusalReason.NO_ROOM


def test_a_request_that_asks_for_no_models_is_served_by_old_and_new_ones() -> None:
    made = placer(
        verifier("old", models=Fingerprints("t1", "d", "k")),
        verifier("new", models=Fingerprints("t2", "d", "k")),
    )
    wanted = Fingerprints(tokenizer="k")
    assert {placed(made, request(uid, models=wanted)).verifier_id for uid in "12"} == {"old", "new"}


def test_a_substitute_serves_only_where_the_wanted_target_does_not() -> None:
    old, new = Fingerprints("t1", "d", "k"), Fingerprints("t2", "d", "k")
    made = placer(verifier("old", max_requests=2, models=old))

    def wants_new(uid: str) -> PlacementRequest:
        return request(uid, models=new, substitute=Fingerprints(tokenizer="k"))

    first = placed(made, wants_new("1"))
    assert (first.verifier_id, first.fingerprints) == ("old", old)
    tell(made, verifier("new", "n2", max_requests=2, models=new))
    assert [placed(made, wants_new(uid)).fingerprints for uid in "234"] == [new, new, old]
    assert refused(made, wants_new("5")) is RefusalReason.NO_ROOM
    assert refused(made, request("6", models=old)) is RefusalReason.NO_ROOM
    assert refused(made, request("7", models=Fingerprints("t3"))) is RefusalReason.NO_FIT
    assert made.num_reservations == 4


def test_while_an_update_replaces_the_drafter_each_version_is_paired_with_its_own() -> None:
    old, new = Fingerprints("t", "d1", "k"), Fingerprints("t", "d2", "k")
    made = placer(
        verifier("old", "n1", models=old),
        drafter("new drafter", "n1", models=new),
        verifier("new", "n2", models=new),
        drafter("old drafter", "n2", models=old),
        verifier("lonely", "n3", models=Fingerprints("t", "d3", "k")),
        drafter("another", "n3", has_remote=False, models=new),
    )
    placements = [placed(made, request(str(number))) for number in range(30)]
    assert {(p.verifier_id, p.drafter_id, p.is_colocated) for p in placements} == {
        ("old", "old drafter", False),
        ("new", "new drafter", False),
        ("lonely", None, False),
    }


def test_an_update_that_changes_no_model_pairs_old_and_new_ones_freely() -> None:
    models = Fingerprints("t", "d", "k")
    made = placer(verifier("old", models=models, epoch="1"), drafter("new drafter", models=models))
    placement = placed(made, request())
    assert (placement.drafter_id, placement.is_colocated) == ("new drafter", True)


def test_a_dead_verifier_is_picked_no_more_until_it_restarts() -> None:
    """FAULT 17."""
    made = placer(verifier("a"), says("a", IDLE, KEYS[63]), verifier("b"))
    made.evict("a")
    tell(made, verifier("a"), says("a", IDLE, KEYS[63]))
    assert {placed(made, request(str(i))).verifier_id for i in range(8)} == {"b"}
    tell(made, verifier("a", epoch="2"))
    placement = placed(made, request())
    assert (placement.verifier_id, placement.cached_tokens) == ("a", 0)


def test_a_verifier_that_only_hung_comes_back_when_it_registers_again() -> None:
    made = placer(verifier("a"))
    made.evict("a")
    tell(made, verifier("a"))
    assert refused(made, request()) is RefusalReason.NO_VERIFIER
    tell(made, Removal("a"), verifier("a"))
    assert placed(made, request()).verifier_id == "a"


def test_who_is_removed_or_not_on_the_roster_is_gone() -> None:
    made = placer(*map(verifier, "abc"), drafter("d"), drafter("e", "n2"), Removal("a"))
    tell(made, Roster(frozenset({"b", "d"})))
    placement = placed(made, request())
    assert (placement.verifier_id, placement.drafter_id) == ("b", "d")
    assert refused(made, request("s", exclude=frozenset("b"))) is RefusalReason.EXCLUDED


def test_a_replica_is_known_from_its_registration_until_it_is_removed_or_evicted() -> None:
    made = placer(verifier("a"), verifier("b"), drafter("c"))
    assert [made.knows(name) for name in "abcd"] == [True, True, True, False]
    tell(made, Removal("a"))
    made.evict("b")
    assert [made.knows(name) for name in "abc"] == [False, False, True]


def test_a_drafter_on_the_same_node_is_preferred_to_an_idle_one_elsewhere() -> None:
    made = placer(verifier("v"), drafter("here"), drafter("there", "n2"))
    tell(made, says("here", ReplicaLoad(running_requests=40)), says("there"))
    placement = placed(made, request())
    assert (placement.drafter_id, placement.drafter_endpoints) == ("here", ("unix:/here",))
    assert placement.is_colocated


def test_without_one_on_its_node_it_gets_the_least_busy_that_can_be_reached() -> None:
    made = placer(
        verifier("v", "n3"),
        drafter("a"),
        drafter("b"),
        drafter("c", has_remote=False),
        says("a", ReplicaLoad(9)),
    )
    placement = placed(made, request())
    assert (placement.drafter_id, placement.drafter_endpoints) == ("b", ("tcp:b",))
    assert not placement.is_colocated


def test_without_any_drafter_that_fits_it_decodes_plainly() -> None:
    made = placer(
        verifier("v", models=Fingerprints("t", "d1", "k")), drafter("a", models=Fingerprints("t", "d2", "k"))
    )
    placement = placed(made, request())
    assert (placement.drafter_id, placement.drafter_endpoints) == (None, ())


def test_a_verifier_that_decodes_plainly_gets_no_drafter() -> None:
    made = placer(verifier("v", models=Fingerprints("t", NO_DRAFTER, "k")), drafter("a"))
    assert placed(made, request()).drafter_id is None


def test_the_drafter_that_has_the_context_is_picked_on_a_node() -> None:
    made = placer(verifier("v"), drafter("a"), drafter("b"), says("b", IDLE, DRAFT_KEYS[40]))
    placement = placed(made, request())
    assert (placement.drafter_id, placement.draft_cached_tokens) == ("b", 656)


def test_of_equally_loaded_verifiers_one_with_a_drafter_on_its_node_is_picked() -> None:
    made = placer(verifier("a", "n1"), verifier("b", "n2"), drafter("d", "n2"))
    assert placed(made, request()).verifier_id == "b"


def test_a_full_or_draining_drafter_gets_nothing_new() -> None:
    for load in (ReplicaLoad(running_requests=64), ReplicaLoad(is_draining=True)):
        made = placer(verifier("v"), drafter("a"), drafter("b", "n2"), says("a", load))
        assert placed(made, request()).drafter_id == "b"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("place", "release", "admit", "evict", "drain", "register")), st.integers(0, 5)
        ),
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_a_replica_never_gets_more_than_it_takes(steps: list[tuple[str, int]], seed: int) -> None:
    """Reserved and reported requests together stay within every limit, whatever happens in between."""
    made = placer(seed=seed)
    open_at: dict[str, str] = {}
    admitted: dict[str, set[str]] = {f"v{i}": set() for i in range(3)}
    for number, (what, which) in enumerate(steps):
        name = f"v{which % 3}"
        if what == "register":
            tell(made, VerifierRecord(name, "n1", "e", ANY_MODELS, 3), drafter("d"))
        elif what == "place":
            placement = made.choose(request(str(number)))
            if isinstance(placement, Placement):
                open_at[placement.uid] = placement.verifier_id
                assert list(open_at.values()).count(placement.verifier_id) <= 3
        elif what == "release" and open_at:
            uid = list(open_at)[which % len(open_at)]
            admitted[open_at.pop(uid)].discard(uid)
            made.release(uid)
        elif what == "evict":
            made.evict(name)
            gone = [uid for uid, at in open_at.items() if at == name]
            for uid in gone:
                del open_at[uid]
                made.release(uid)
            admitted[name].clear()
        else:
            new = tuple(uid for uid, at in open_at.items() if at == name and uid not in admitted[name])
            admitted[name] |= set(new)
            load = ReplicaLoad(running_requests=len(admitted[name]), is_draining=what == "drain")
            tell(made, says(name, load, admitted=new))
    for uid in open_at:
        made.release(uid)
    assert made.num_reservations == 0
