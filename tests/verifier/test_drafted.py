from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dspine_cluster.core.survival import CONFIDENCE_EDGES, NUM_BINS, cells_of
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.confidence import bins_of
from dspine_cluster.transport.messages import Proposals
from dspine_cluster.verifier.drafted import DraftedBlock, lay_out, read_blocks, read_cells

PROPOSED = 7


def proposals(candidates: list[int], probs: list[float]) -> Proposals:
    """Two proposals for one request, with the same candidates each."""
    shape = (1, 2, len(candidates))
    return Proposals(
        numbers=np.array([[1], [1], [1]]),
        tokens=np.full((1, 2), PROPOSED, np.int32),
        candidates=np.broadcast_to(np.asarray(candidates, np.int32), shape),
        probs=np.broadcast_to(np.asarray(probs, np.float32), shape),
        bins=np.full((1, 2), NUM_BINS - 1, np.int8),
        draft_s=0.0,
    )


@pytest.mark.parametrize(
    ("candidates", "probs"),
    [
        ([PROPOSED, 8], [0.0, 1.0]),
        ([PROPOSED, 8], [0.5, 0.4]),
        ([PROPOSED, 8], [1.0, 1.0]),
        ([8, PROPOSED], [0.5, 0.5]),
        ([8, 9], [0.5, 0.5]),
        ([], []),
    ],
    ids=[
        "no mass on the proposal",
        "too little mass",
        "too much mass",
        "another place",
        "another token",
        "nothing",
    ],
)
def test_proposals_that_cannot_come_from_their_distribution_are_refused(
    candidates: list[int], probs: list[float]
) -> None:
    with pytest.raises(ChannelError, match="not drawn"):
        read_blocks(proposals(candidates, probs), [0], vocab_size=10)


def test_a_distribution_that_is_not_needed_is_not_looked_at() -> None:
    (block,) = read_blocks(proposals([8], [0.0]), [], vocab_size=10)
    assert lay_out([1], [block], [2]) == [1, PROPOSED, PROPOSED]
    assert block.probs is None


def test_each_block_has_its_own_row_and_the_distributions_it_needs() -> None:
    tokens = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    message = Proposals(
        numbers=np.array([[1, 2, 3], [1, 1, 1], [0, 1, 1]]),
        tokens=tokens,
        candidates=tokens[1:, :, None],
        probs=np.ones((2, 2, 1), np.float32),
        bins=bins_of(np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]], np.float32)),
        draft_s=0.0,
    )
    plain, _, sampled = read_blocks(message, [2], vocab_size=10)
    assert lay_out([8, 9], [plain, sampled], [2, 2]) == [8, 1, 2, 9, 5, 6]
    assert (plain.cells, sampled.cells) == (cells_of([0.0, 0.0]), cells_of([1.0, 1.0]))
    assert plain.candidates is None
    assert sampled.candidates is not None
    assert sampled.candidates.tolist() == [[5], [6]]


def test_a_distribution_that_is_needed_and_was_not_told_is_missed() -> None:
    message = structs.replace(
        proposals([PROPOSED], [1.0]),
        numbers=np.array([[1], [1], [0]]),
        candidates=np.empty((0, 2, 1), np.int32),
        probs=np.empty((0, 2, 1), np.float32),
    )
    with pytest.raises(ChannelError, match="without their distribution"):
        read_blocks(message, [0], vocab_size=10)


def test_ids_beyond_the_vocabulary_are_refused_wherever_they_are_of_use() -> None:
    with pytest.raises(ChannelError, match="vocabulary"):
        read_blocks(proposals([PROPOSED], [1.0]), [], vocab_size=PROPOSED)
    with pytest.raises(ChannelError, match="vocabulary"):
        read_blocks(proposals([PROPOSED, -1], [1.0, 0.0]), [0], vocab_size=10)


def test_cells_of_a_whole_answer_are_those_of_its_blocks() -> None:
    random = np.random.default_rng(0).random((50, 15), np.float32)
    edges = np.array([*CONFIDENCE_EDGES, 0.0, 1.0], np.float32)
    for confidences in (random, edges[None]):
        assert read_cells(bins_of(confidences)) == [cells_of(row) for row in confidences.tolist()]


@given(st.data())
def test_proposals_are_laid_out_behind_their_anchors_whoever_drafted_them(data: st.DataObject) -> None:
    blocks = data.draw(st.lists(st.none() | st.lists(st.integers(0, 99), max_size=15), max_size=6))
    tokens, drafted = array("i"), list[DraftedBlock | None]()
    for own in blocks:
        drafted.append(None if own is None else DraftedBlock(tokens, len(tokens), []))
        tokens.extend(own or [])
    lengths = [0 if own is None else data.draw(st.integers(0, len(own))) for own in blocks]
    anchors = list(range(100, 100 + len(blocks)))
    expected = list[int]()
    for anchor, own, length in zip(anchors, blocks, lengths, strict=True):
        expected += [anchor, *(own or [])[:length]]
    assert lay_out(anchors, drafted, lengths) == expected
