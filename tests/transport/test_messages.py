"""Messages refuse contents that no channel may carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspine_cluster.core.survival import NUM_BINS
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    FeatureBatch,
    Features,
    Need,
    Open,
    Opened,
    Proposals,
    join_keys,
    split_keys,
)


def proposals(**changes: Any) -> Proposals:
    fields: dict[str, Any] = {
        "numbers": np.array([[1, 2], [5, 6], [1, 1]]),
        "tokens": np.zeros((2, 3), np.int32),
        "candidates": np.zeros((2, 3, 4), np.int32),
        "probs": np.full((2, 3, 4), 0.25, np.float32),
        "bins": np.zeros((2, 3), np.int8),
        "draft_s": 0.01,
    }
    return Proposals(**{**fields, **changes})


def test_distributions_are_told_of_sampled_requests_alone() -> None:
    for num_sampled in range(3):
        message = proposals(
            numbers=np.array([[1, 2], [5, 6], [num_sampled > 1, num_sampled > 0]]),
            candidates=np.zeros((num_sampled, 3, 4), np.int32),
            probs=np.full((num_sampled, 3, 4), 0.25, np.float32),
        )
        message.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"numbers": np.array([[1, 2], [5, -1], [1, 1]])},
        {"numbers": np.array([[1, 2], [5, 2**40], [1, 1]])},
        {"numbers": np.array([[1, -2], [5, 6], [1, 1]])},
        {"numbers": np.array([[1, 2], [5, 6], [1, 2]])},
        {"numbers": np.array([[1, 2], [5, 6], [1, 1]], np.int32)},
        {"numbers": np.array([[1, 2], [5, 6]])},
        {"numbers": np.array([[1], [5], [1]])},
        {"numbers": np.zeros((3, 0), np.int64)},
        {"tokens": np.zeros((3, 3), np.int32)},
        {"tokens": np.zeros((2, 3), np.int64)},
        {"tokens": np.zeros(2, np.int32)},
        {"bins": np.zeros((2, 2), np.int8)},
        {"bins": np.full((2, 3), NUM_BINS, np.int8)},
        {"bins": np.full((2, 3), -1, np.int8)},
        {"bins": np.zeros((2, 3), np.uint8)},
        {"numbers": np.array([[1, 2], [5, 6], [1, 0]])},
        {"candidates": np.zeros((1, 3, 4), np.int32), "probs": np.zeros((1, 3, 4), np.float32)},
        {"candidates": np.zeros((2, 2, 4), np.int32)},
        {"candidates": np.zeros((2, 3), np.int32), "probs": np.zeros((2, 3), np.float32)},
        {"probs": np.full((2, 3, 4), np.nan, np.float32)},
        {"probs": np.zeros((2, 3, 5), np.float32)},
        {"probs": np.full((2, 3, 4), -0.1, np.float32)},
        {"probs": np.full((2, 3, 4), 1.5, np.float32)},
        {"draft_s": float("inf")},
    ],
)
def test_proposals_of_unequal_shapes_or_impossible_numbers_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|come together"):
        proposals(**changes).check()


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, 4), np.uint8),
        np.zeros((4, 0), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((1, 4), np.int8),
    ],
)
def test_features_without_rows_of_bytes_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="rows must"):
        Features(1, 0, rows).check()


def feature_batch(**changes: Any) -> FeatureBatch:
    fields: dict[str, Any] = {
        "uids": np.array([3, 1]),
        "starts": np.array([16, 0]),
        "counts": np.array([1, 2]),
        "rows": np.arange(12, dtype=np.uint8).reshape(3, 4),
    }
    return FeatureBatch.of(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"uids": np.array([3, -1])},
        {"starts": np.array([16, -1])},
        {"starts": np.array([16, 2**40])},
        {"counts": np.array([3, 0])},
        {"counts": np.array([4, -1])},
        {"counts": np.array([2, 2])},
        {"rows": np.zeros((3, 0), np.uint8)},
        {"rows": np.zeros(3, np.uint8)},
        {"rows": np.zeros((3, 4), np.int8)},
        {"uids": np.zeros(0, np.int64), "starts": np.zeros(0, np.int64), "counts": np.zeros(0, np.int64)},
    ],
)
def test_feature_batches_that_do_not_say_whose_each_row_is_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        feature_batch(**changes).check()


def test_a_feature_batch_is_the_features_of_each_request() -> None:
    batch = feature_batch()
    first, second = batch.parts()
    assert (first.uid, first.start, first.rows.tolist()) == (3, 16, [[0, 1, 2, 3]])
    assert (second.uid, second.start, second.rows.tolist()) == (1, 0, [[4, 5, 6, 7], [8, 9, 10, 11]])
    assert batch.num_bytes == first.num_bytes + second.num_bytes == 12


def test_features_know_their_end_and_their_cost() -> None:
    features = Features(1, 32, np.zeros((5, 8), np.uint8))
    assert (features.end, features.num_bytes) == (37, 40)


def draft(**changes: Any) -> Draft:
    columns: dict[str, Any] = {
        "uids": [1, 2],
        "rounds": [5, 6],
        "anchors": [7, 8],
        "positions": [3, 4],
        "num_proposals": [15, 1],
        "output_indices": [0, 2],
        "seeds": [None, -9],
        "temperatures": [0.0, 0.5],
    }
    return Draft.of(**{**columns, **changes})


def test_a_draft_gives_its_columns_back() -> None:
    asked = draft()
    assert len(asked) == 2
    assert asked.uids.tolist() == [1, 2]
    assert asked.rounds.tolist() == [5, 6]
    assert asked.anchors.tolist() == [7, 8]
    assert asked.positions.tolist() == [3, 4]
    assert asked.num_proposals.tolist() == [15, 1]
    assert asked.output_indices.tolist() == [0, 2]
    assert (asked.has_seed.tolist(), asked.seeds.tolist()) == ([0, 1], [0, -9])
    assert asked.temperatures.tolist() == [0.0, 0.5]


def test_a_part_of_a_draft_is_the_draft_of_these_requests_alone() -> None:
    asked = draft()
    part = asked.part(np.array([False, True]))
    assert (part.numbers.tolist(), part.temperatures.tolist()) == (asked.numbers[:, 1:].tolist(), [0.5])
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("uids", [1, -1]),
        ("rounds", [-1, 5]),
        ("rounds", [5, 2**40]),
        ("anchors", [-1, 0]),
        ("anchors", [0, 2**31]),
        ("positions", [0, -1]),
        ("positions", [2**40, 0]),
        ("num_proposals", [0, 1]),
        ("num_proposals", [1, 4097]),
        ("output_indices", [0, -1]),
        ("output_indices", [2**40, 0]),
    ],
)
def test_a_draft_with_a_number_out_of_range_is_refused_by_name(name: str, values: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        draft(**{name: values}).check()


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        draft(temperatures=[0.0, temperature]).check()


@pytest.mark.parametrize(
    ("numbers", "temperatures"),
    [
        (np.ones((7, 2), np.int64), np.zeros(2)),
        (np.ones((8, 2), np.int32), np.zeros(2)),
        (np.ones(8, np.int64), np.zeros(1)),
        (np.ones((8, 0), np.int64), np.zeros(0)),
        (np.ones((8, (1 << 16) + 1), np.int64), np.zeros((1 << 16) + 1)),
        (np.ones((8, 2), np.int64), np.zeros(1)),
        (np.ones((8, 2), np.int64), np.zeros((2, 1))),
        (np.ones((8, 2), np.int64), np.zeros(2, np.float32)),
        (np.full((8, 2), 2), np.zeros(2)),
    ],
    ids=["rows", "dtype", "flat", "empty", "many", "few", "table", "float32", "has_seed"],
)
def test_a_draft_whose_columns_are_not_what_they_should_be_is_refused(
    numbers: Any, temperatures: Any
) -> None:
    with pytest.raises(ValueError, match="must"):
        Draft(numbers, temperatures).check()


def test_an_empty_range_cannot_be_needed() -> None:
    with pytest.raises(ValueError, match="start"):
        Need(1, 4, 4).check()


def test_busy_names_a_round_for_each_request() -> None:
    with pytest.raises(ValueError, match="numbers"):
        Busy(np.array([[1, 2]])).check()


def test_page_keys_travel_joined() -> None:
    keys = [bytes([number]) * 16 for number in range(5)]
    assert split_keys(join_keys(keys)) == keys
    assert split_keys(b"") == []


@pytest.mark.parametrize("kind", [Open, Close])
@pytest.mark.parametrize("joined", [bytes(15), bytes(32)], ids=["cut off", "twice the same"])
def test_page_keys_that_cannot_be_are_refused(kind: type[Open | Close], joined: bytes) -> None:
    with pytest.raises(ValueError, match="page_keys must"):
        kind(1, joined).check()


@pytest.mark.parametrize("ranges", [[(4, 4)], [(4, 3)], [(0, 4), (4, 8)], [(8, 9), (0, 4)]])
def test_ranges_that_are_empty_or_out_of_order_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="ranges must"):
        Opened(1, 0, ranges, 100).check()
