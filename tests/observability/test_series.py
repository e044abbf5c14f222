from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.observability.series import parse_series, series

words = st.text("abcz_019/.+-", min_size=1, max_size=8)


@given(name=words, labels=st.dictionaries(words, words, max_size=3))
def test_a_figure_s_name_gives_back_what_it_was_made_of(name: str, labels: dict[str, str]) -> None:
    assert parse_series(series(name, labels)) == (name, tuple(labels.items()))
