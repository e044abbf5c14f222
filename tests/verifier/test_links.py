from __future__ import annotations

from dataclasses import replace

from dspine_cluster.config import DraftingConfig
from dspine_cluster.core.session import Session
from dspine_cluster.verifier.draft_keys import DraftKeys
from dspine_cluster.verifier.links import Links
from tests.verifier.harness import ScriptedChannel, make_request


def links_to(*endpoints: str) -> Links:
    links = Links(DraftingConfig(), DraftKeys(None), lambda endpoint, is_faulty: None, lambda: 0.0)
    for endpoint in endpoints:
        links.connect(endpoint, ScriptedChannel(lambda item: None))
    return links


def session(uid: int, *preferred: str) -> Session:
    return Session(uid, replace(make_request([1, 2, 3]), preferred_drafter=preferred), uid)


def endpoint_of(links: Links, session: Session) -> str:
    attachment = links.attach(session)
    assert attachment is not None
    return attachment.link.endpoint


def test_requests_without_a_preference_are_spread() -> None:
    links = links_to("a", "b")
    assert sorted(endpoint_of(links, session(uid)) for uid in range(4)) == ["a", "a", "b", "b"]


def test_the_drafter_that_placement_has_picked_is_preferred() -> None:
    links = links_to("a", "b")
    assert [endpoint_of(links, session(uid, "other", "b")) for uid in range(3)] == ["b"] * 3


def test_another_drafter_is_used_when_the_preferred_one_is_gone() -> None:
    links = links_to("a", "b")
    request = session(1, "b")
    assert endpoint_of(links, request) == "b"
    [preferred] = [link for link in links.all if link.endpoint == "b"]
    links.drop(preferred, report=False)
    assert endpoint_of(links, request) == "a"
