from __future__ import annotations

from dspine_cluster.core.keyed_pages import KeyedPages

KEYS = [bytes([number]) * 16 for number in range(8)]


def keyed(pages: KeyedPages, name: int) -> int:
    """The first page of a request, with a key, that nobody holds."""
    page = pages.allocate()
    assert page is not None
    assert pages.offer(page, KEYS[name], None, 0) == page
    pages.release(page)
    return page


def test_of_two_pages_with_one_key_the_first_is_kept_and_held_by_both() -> None:
    pages = KeyedPages(4, 1)
    first, second = pages.allocate(), pages.allocate()
    assert first is not None
    assert second is not None
    assert pages.offer(first, KEYS[0], None, 0) == pages.offer(second, KEYS[0], None, 0) == first
    holders = [0] * 4
    holders[first] = 2
    pages.check_integrity(holders)
    assert pages.num_free == 3


def test_a_page_without_a_key_is_free_once_it_is_let_go_of() -> None:
    pages = KeyedPages(1, 1)
    page = pages.allocate()
    assert page is not None
    assert pages.allocate() is None
    pages.release(page)
    assert pages.allocate() == page
    assert pages.num_evictions == 0


def test_what_nobody_has_used_for_longest_makes_room_first_and_what_is_held_never_does() -> None:
    pages = KeyedPages(3, 1)
    old, held, _ = (keyed(pages, name) for name in range(3))
    pages.hold(held)
    assert pages.allocate() == old
    assert pages.find(KEYS[0]) is None
    assert len(list(pages.allocate_each(5))) == 1
    assert pages.find(KEYS[1]) == held
    assert pages.num_evictions == 2


def test_a_withheld_page_stays_with_its_holder_and_is_found_by_nobody() -> None:
    pages = KeyedPages(2, 1)
    page = keyed(pages, 0)
    pages.hold(page)
    pages.withhold(page)
    assert page not in pages
    assert pages.find(KEYS[0]) is None
    assert pages.num_free == 1
    pages.release(page)
    assert pages.num_free == 2
