"""Numbers in columns are within their bounds, whatever passes over them were saved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dspine_cluster.transport.columns import Bounds, are_probabilities, check_columns

LEAST, LARGEST = -(2**63), 2**63 - 1
EDGES = [LEAST, LEAST + 1, -1, 0, 1, 2**40 - 1, 2**40, LARGEST - 1, LARGEST]
numbers = st.sampled_from(EDGES) | st.integers(LEAST, LARGEST)


@given(
    st.lists(st.tuples(numbers, numbers).map(sorted), min_size=1, max_size=3), st.integers(1, 3), st.data()
)
def test_numbers_are_refused_by_the_name_of_the_first_row_that_leaves_its_bounds(
    ranges: list[list[int]], num_columns: int, data: st.DataObject
) -> None:
    named = {f"row_{i}": (low, high) for i, (low, high) in enumerate(ranges)}
    values = data.draw(npst.arrays(np.int64, (len(ranges), num_columns), elements=numbers))
    wrong = [
        f"{name} must lie in \\[{low}, {high}\\]"
        for (name, (low, high)), row in zip(named.items(), values.tolist(), strict=True)
        if not all(low <= value <= high for value in row)
    ]
    bounds = Bounds.of(**named)
    if wrong:
        with pytest.raises(ValueError, match=wrong[0]):
            check_columns(values, bounds, "values")
    else:
        check_columns(values, bounds, "values")


@given(
    npst.arrays(
        np.float32, st.integers(0, 3), elements=st.floats(width=32) | st.floats(-0.125, 1.125, width=32)
    )
)
def test_what_cannot_be_a_probability_is_told(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    is_right = bool(((values >= 0) & (values <= np.float32(1.0001)) & ~np.signbit(values)).all())
    assert are_probabilities(values) == is_right
