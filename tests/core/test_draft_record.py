from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.draft_record import DraftRecord

steps = st.lists(st.tuples(st.sampled_from(["put", "drop", "read"]), st.integers(0, 12)), max_size=60)


@given(steps)
def test_page_tables_and_the_lowest_page_follow_every_change(steps: list[tuple[str, int]]) -> None:
    record, pages = DraftRecord([]), dict[int, int]()
    for step, (kind, number) in enumerate(steps):
        if kind == "put":
            record.put(number, step)
            pages[number] = step
        elif kind == "drop" and number in pages:
            assert record.drop(number) == pages.pop(number)
        elif number in pages:
            last = number
            while last + 1 in pages:
                last += 1
            assert list(record.pages_from(number, last)) == [pages[i] for i in range(number, last + 1)]
        assert record.pages == pages
        assert not pages or record.lowest == min(pages)
