from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.batch_plan import BatchPlan, BlockPlans
from dspine_cluster.core.batch_planner import Budget, Prefixes, load_ahead, plan_batch, proposal_room
from dspine_cluster.core.page_pool import num_pages_for
from dspine_cluster.core.prefix_index import Match
from dspine_cluster.core.resume import COLD_START, Resume
from dspine_cluster.core.session import Phase, Session
from dspine_cluster.types import CHUNK_GRID_TOKENS, GenerateRequest, SamplingParams, StopConditions


class NoPrefixes:
    """Nothing is cached, and no page is shared."""

    def find(self, session: Session) -> Resume:
        return COLD_START

    def num_returned(self, session: Session) -> int:
        return len(session.pages)


EMPTY = NoPrefixes()


def make_session(
    uid: int,
    num_tokens: int,
    *,
    phase: Phase = Phase.WAITING,
    computed: int = 0,
    priority: int = 0,
    client: str = "",
    share: float = 1.0,
) -> Session:
    request = GenerateRequest(
        str(uid),
        (1,) * num_tokens,
        SamplingParams(),
        StopConditions(max_tokens=100),
        priority=priority,
        client=client,
        client_share=share,
    )
    session = Session(uid, request, arrival=uid)
    session.phase = phase
    session.num_computed = computed
    if phase is not Phase.WAITING:
        session.pages = array("i", [0] * num_pages_for(num_tokens))
    return session


def decoding(uid: int, num_tokens: int, priority: int = 0, client: str = "", share: float = 1.0) -> Session:
    return make_session(
        uid,
        num_tokens,
        phase=Phase.DECODE,
        computed=num_tokens - 1,
        priority=priority,
        client=client,
        share=share,
    )


def budget(free_pages: int = 100, free_slots: int = 8, max_batch_tokens: int = 256) -> Budget:
    return Budget(free_pages, free_slots, max_batch_tokens, prefill_chunk_tokens=128)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[tuple[Session, int]], list[Session], list[Session], Budget]:
    ready: list[tuple[Session, int]] = []
    running: list[Session] = []
    waiting: list[Session] = []
    for uid in range(draw(st.integers(0, 12))):
        priority = draw(st.integers(0, 2))
        client = draw(st.sampled_from(["", "a", "b"]))
        num_tokens = draw(st.integers(2, 400))
        kind = draw(st.sampled_from(["ready", "drafting", "prefill", "waiting"]))
        if kind == "waiting":
            waiting.append(make_session(uid, num_tokens, priority=priority, client=client))
        elif kind == "prefill":
            computed = draw(st.integers(0, (num_tokens - 1) // CHUNK_GRID_TOKENS)) * CHUNK_GRID_TOKENS
            running.append(
                make_session(
                    uid,
                    num_tokens,
                    phase=Phase.PREFILL,
                    computed=computed,
                    priority=priority,
                    client=client,
                )
            )
        else:
            session = decoding(uid, num_tokens, priority, client)
            running.append(session)
            if kind == "ready":
                ready.append((session, draw(st.integers(0, 15))))
    limits = Budget(
        free_pages=draw(st.integers(0, 40)),
        free_slots=draw(st.integers(0, 6)),
        max_batch_tokens=draw(st.integers(len(ready) + 64, 600)),
        prefill_chunk_tokens=64 * draw(st.integers(1, 4)),
    )
    room = room_of(ready, limits)
    fitting = []
    for session, num_proposals in ready:
        fitting.append((session, draw(st.integers(0, min(num_proposals, room)))))
        room -= fitting[-1][1]
    return fitting, running, waiting, limits


def columns(blocks: Sequence[tuple[Session, int]]) -> tuple[list[Session], list[int]]:
    return [session for session, _ in blocks], [count for _, count in blocks]


def room_of(ready: Sequence[tuple[Session, int]], limits: Budget) -> int:
    sessions, num_proposals = columns(ready)
    return proposal_room(BlockPlans(sessions), num_proposals, limits)


def plan_of(
    ready: Sequence[tuple[Session, int]],
    running: Sequence[Session],
    waiting: Sequence[Session],
    limits: Budget,
    prefixes: Prefixes = EMPTY,
) -> BatchPlan:
    prefilling = [session for session in running if session.phase is Phase.PREFILL]
    return plan_batch(BlockPlans(*columns(ready)), running, prefilling, waiting, limits, prefixes)


def pages_taken(plan: BatchPlan) -> int:
    return len(plan.blocks.lacking) + sum(chunk.num_new_pages for chunk in plan.chunks)


@given(situations())
def test_a_plan_never_takes_more_pages_than_are_free_after_preemption(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    plan = plan_of(ready, running, waiting, limits)
    assert pages_taken(plan) <= limits.free_pages + sum(len(s.pages) for s in plan.preempted)


@given(situations())
def test_a_pass_holds_at_most_max_batch_tokens(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    plan = plan_of(ready, running, waiting, limits)
    num_tokens = len(plan.blocks) + sum(plan.blocks.verify_lengths) + sum(c.num_tokens for c in plan.chunks)
    assert num_tokens <= limits.max_batch_tokens


@given(situations())
def test_every_ready_session_is_decoded_or_preempted(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    plan = plan_of(ready, running, waiting, limits)
    planned = [s.uid for s in plan.blocks.sessions]
    preempted = [s.uid for s in plan.preempted]
    assert sorted(planned + [u for u in preempted if u in {s.uid for s, _ in ready}]) == sorted(
        s.uid for s, _ in ready
    )
    assert not set(planned) & set(preempted)


@given(situations())
def test_chunks_end_on_the_grid_or_at_the_last_token(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    for chunk in plan_of(ready, running, waiting, limits).chunks:
        end = chunk.session.num_computed + chunk.num_tokens
        assert 0 < chunk.num_tokens <= limits.prefill_chunk_tokens
        assert end == len(chunk.session.tokens) or end % CHUNK_GRID_TOKENS == 0


@given(situations())
def test_admission_follows_the_order_of_waiting_and_the_free_slots(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    plan = plan_of(ready, running, waiting, limits)
    admitted = [c.session for c in plan.chunks if c.session.phase is Phase.WAITING]
    assert admitted == waiting[: len(admitted)]
    assert len(admitted) <= limits.free_slots


@given(situations())
def test_nobody_is_preempted_while_anything_is_verified(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    ready, running, waiting, limits = situation
    plan = plan_of(ready, running, waiting, limits)
    if plan.preempted:
        assert not any(plan.blocks.verify_lengths)


@given(situations())
def test_verify_lengths_are_as_chosen(
    situation: tuple[list[tuple[Session, int]], list[Session], list[Session], Budget],
) -> None:
    """To lower them afterwards would bias sampled output."""
    ready, running, waiting, limits = situation
    chosen = {session.uid: length for session, length in ready}
    blocks = plan_of(ready, running, waiting, limits).blocks
    assert blocks.verify_lengths == [chosen[session.uid] for session in blocks.sessions]


def victims(running: Sequence[Session], free_pages: int) -> list[int]:
    plan = plan_of([(s, 0) for s in running], running, [], budget(free_pages=free_pages))
    return [s.uid for s in plan.preempted]


def test_the_youngest_of_the_lowest_priority_gives_way() -> None:
    sessions = [decoding(0, 17, priority=1), decoding(1, 17, priority=1), decoding(2, 17, priority=0)]
    for session in sessions:
        session.pages = session.pages[:1]
    assert victims(sessions, free_pages=1) == [1]


def without_last_pages(sessions: list[Session]) -> list[Session]:
    for session in sessions:
        session.pages = session.pages[:-1]
    return sessions


def test_who_holds_most_gives_way_whatever_the_priorities_of_others() -> None:
    """Else a client that gives its own requests the lowest priority there is would push out everybody's."""
    sessions = [
        decoding(0, 17, priority=0, client="modest"),
        decoding(1, 33, priority=-100, client="greedy"),
        decoding(2, 33, priority=-50, client="greedy"),
        decoding(3, 17, priority=5, client="modest"),
    ]
    assert victims(without_last_pages(sessions), free_pages=2) == [2]


def test_everybody_may_hold_pages_by_their_shares() -> None:
    sessions = [decoding(0, 49, client="large", share=4.0), decoding(1, 33, client="small")]
    assert victims(without_last_pages(sessions), free_pages=1) == [1]


def test_of_clients_that_hold_as_much_the_one_that_came_last_gives_way() -> None:
    sessions = [decoding(0, 17, client="a"), decoding(1, 17, client="b")]
    assert victims(without_last_pages(sessions), free_pages=1) == [1]


def test_clients_give_way_by_turns() -> None:
    sessions = [decoding(uid, 17, client=client) for uid, client in enumerate("aaabb")]
    assert victims(without_last_pages(sessions), free_pages=0) == [2, 4, 1]


def test_a_request_alone_is_never_preempted_while_its_anchor_fits() -> None:
    session = decoding(0, 17)
    session.pages = session.pages[:1]
    assert victims([session], free_pages=1) == []


def test_proposals_have_the_room_that_anchors_and_a_chunk_leave() -> None:
    blocks = [(decoding(0, 20), 15), (decoding(1, 33), 3)]
    assert room_of(blocks, budget(max_batch_tokens=64 + 10)) == 8


def test_proposals_have_no_room_where_pages_for_all_of_them_are_missing() -> None:
    """Both sequences end within their second page; 15 proposals of each need a third."""
    blocks = [(decoding(uid, 20), 15) for uid in range(2)]
    assert room_of(blocks, budget(free_pages=2)) > 0
    assert room_of(blocks, budget(free_pages=1)) == 0


def test_the_load_ahead_counts_the_next_chunks_and_cached_tokens() -> None:
    prompts = [
        make_session(0, 300, phase=Phase.PREFILL, computed=64),
        make_session(1, 100, phase=Phase.PREFILL, computed=64),
    ]
    blocks = [(decoding(2, 20), 15), (decoding(3, 33), 0)]
    sessions, counts = columns(blocks)
    load = load_ahead(BlockPlans(sessions), counts, prompts, budget())
    assert (load.num_prefill_tokens, load.num_kv_tokens) == (128 + 36, 19 + 32)
    assert load.max_verified_tokens == room_of(blocks, budget())


def test_a_plan_tells_its_load() -> None:
    blocks = [(decoding(1, 33), 3)]
    plan = plan_of(blocks, [blocks[0][0]], [make_session(0, 300)], budget())
    assert (plan.load.num_prefill_tokens, plan.load.num_kv_tokens) == (128, 32)


def test_a_waiting_request_takes_all_its_pages_when_it_is_admitted() -> None:
    plan = plan_of([], [], [make_session(0, 300)], budget())
    assert [(c.num_tokens, c.num_new_pages) for c in plan.chunks] == [(128, num_pages_for(301))]


def test_a_request_that_does_not_fit_waits_and_so_do_the_ones_behind_it() -> None:
    plan = plan_of([], [], [make_session(0, 300), make_session(1, 16)], budget(free_pages=10))
    assert plan.is_empty


class OnePrefix(NoPrefixes):
    """Every waiting session would resume in the same way, and gives back no page that another shares."""

    def __init__(self, resume: Resume, num_returned: int = 0) -> None:
        self._resume = resume
        self._num_returned = num_returned

    def find(self, session: Session) -> Resume:
        return self._resume

    def num_returned(self, session: Session) -> int:
        return self._num_returned


def test_a_resumed_session_starts_behind_its_match_and_takes_fewer_pages() -> None:
    resume = Resume(Match(num_tokens=128, pages=tuple(range(8))), splits=(192,), checkpoints=(192,))
    (chunk,) = plan_of([], [], [make_session(0, 300)], budget(), OnePrefix(resume)).chunks
    assert (chunk.num_tokens, chunk.num_new_pages, chunk.resume) == (64, 11, resume)


def test_a_start_off_the_grid_ends_its_first_chunk_on_it() -> None:
    resume = Resume(Match(num_tokens=131, pages=tuple(range(8)), tail_page=8), splits=(192,))
    (chunk,) = plan_of([], [], [make_session(0, 300)], budget(), OnePrefix(resume)).chunks
    assert chunk.num_tokens == 192 - 131


def test_idle_pages_of_a_match_cannot_be_allocated_as_well() -> None:
    """11 new pages and 8 idle ones that are held from now on."""
    resume = Resume(Match(num_tokens=128, pages=tuple(range(8)), num_idle_pages=8))
    waiting = [make_session(0, 300)]
    assert plan_of([], [], waiting, budget(free_pages=19), OnePrefix(resume)).chunks
    assert not plan_of([], [], waiting, budget(free_pages=18), OnePrefix(resume)).chunks


def test_what_fits_only_without_a_page_to_copy_starts_cold() -> None:
    match = Match(num_tokens=131, pages=tuple(range(8)), tail_page=8, num_idle_pages=9)
    (chunk,) = plan_of([], [], [make_session(0, 300)], budget(free_pages=19), OnePrefix(Resume(match))).chunks
    assert chunk.resume is COLD_START


def test_pages_that_others_share_do_not_come_back_by_preemption() -> None:
    sessions = [decoding(uid, 33) for uid in range(3)]
    for session in sessions:
        session.pages = array("i", [0, 0])  # each needs a third page
    ready = [(session, 0) for session in sessions]
    plan = plan_of(ready, sessions, [], budget(free_pages=0), OnePrefix(COLD_START, num_returned=1))
    assert [s.uid for s in plan.preempted] == [2, 1]
    assert [s.uid for s in plan.blocks.sessions] == [0]
