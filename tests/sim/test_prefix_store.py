from __future__ import annotations

from typing import Any

from dspine_cluster.sim.prefix_store import PrefixStore
from dspine_cluster.sim.workload import make_talks


def test_the_next_turn_finds_the_text_before_it_and_others_the_system_prompt(make_scenario: Any) -> None:
    talks = list(make_talks(make_scenario(), 1))
    talk = next(t for t in talks if len(t.exchanges) > 1)
    other = next(t for t in talks if t.system == talk.system and t is not talk)
    store = PrefixStore(100_000, 100)
    assert store.match(talk, 0) == 0
    store.put(talk, 0, 0)
    before = talk.exchanges[0]
    assert 0 <= before.prompt_tokens + before.output_tokens - store.match(talk, 1) < 64
    assert 0 <= other.system_tokens - store.match(other, 0) < 64


def test_others_find_a_system_prompt_once_it_is_computed(make_scenario: Any) -> None:
    talks = list(make_talks(make_scenario(), 1))
    talk = talks[0]
    other = next(t for t in talks if t.system == talk.system and t is not talk)
    store = PrefixStore(100_000, 100)
    store.put_system(talk, 0)
    assert 0 <= other.system_tokens - store.match(other, 0) < 64
    assert store.take_events() == (frozenset([talk.system_key]), frozenset[bytes]())
    store.put_system(talks[0], 100_000)
    assert store.match(other, 0) == 0


def test_the_least_recently_used_makes_room_and_events_tell(make_scenario: Any) -> None:
    talks = list(make_talks(make_scenario(), 1))[:30]
    store = PrefixStore(20_000, 8)
    known: set[bytes] = set()
    for talk in talks:
        store.put(talk, 0, 0)
        added, removed = store.take_events()
        assert not added & known
        assert removed <= known
        known = (known | added) - removed
    assert len(known) <= 8
    assert talks[-1].key(0) in known
    assert talks[0].key(0) not in known
