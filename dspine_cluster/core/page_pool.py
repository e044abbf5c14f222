"""Which pages are in use, and by how many holders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dspine_cluster.types import PAGE_TOKENS


def num_pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


def slot_of(pages: Sequence[int] | Mapping[int, int], position: int) -> int:
    """Where a request's `position` is stored, page * 16 + offset; `pages[i]` holds positions 16 i .. 16 i + 15."""
    return pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS


def extend_slots(slots: list[int], pages: Sequence[int] | Mapping[int, int], start: int, end: int) -> None:
    """Append `slot_of` of positions start .. end - 1, page by page."""
    while start < end:
        page_start = start - start % PAGE_TOKENS
        stop = min(end, page_start + PAGE_TOKENS)
        offset = pages[start // PAGE_TOKENS] * PAGE_TOKENS - page_start
        slots.extend(range(offset + start, offset + stop))
        start = stop


class PagePool:
    """Hands out page numbers 0 .. num_pages - 1 and counts the references to each.

    A page starts with one reference; a prefix that several requests read is shared, and comes back to the
    pool when its last holder releases it. The order is deterministic: the page released last is handed out
    first, and pages never used before come in ascending order.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 0
        self._num_references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_pages(self) -> int:
        return len(self._num_references)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_references(self, page: int) -> int:
        return self._num_references[page]

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each; None, and no page taken, when fewer are free."""
        assert count >= 0
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._num_references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a reference to pages that are in use."""
        for page in pages:
            assert self._num_references[page] > 0, f"page {page} is free and cannot be shared"
            self._num_references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page; pages without any are free again."""
        for page in pages:
            assert self._num_references[page] > 0, f"page {page} is released more often than it was taken"
            self._num_references[page] -= 1
            if self._num_references[page] == 0:
                self._free.append(page)

    def check_integrity(self) -> None:
        """Assert that every page is either free, once, or referenced."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        for page, count in enumerate(self._num_references):
            assert count >= 0, f"page {page} has {count} references"
            assert (count == 0) == (page in free), (
                f"page {page} has {count} references and free={page in free}"
            )
