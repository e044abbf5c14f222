"""The blocks of a pass, from the choice of verify lengths to what is learnt of their acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspine_cluster.core.survival import SurvivalModel
from dspine_cluster.core.verify_length import Blocks, Outcomes

Acceptance = tuple[int, int, int, float]
"""Of a block that was verified: (uid, its proposals up to the first that was rejected, how many were accepted, how many
of them were predicted to be)"""

_NO_BLOCKS = Blocks((), (), (), ())


class BlockSurvival:
    """Learns greedy and sampled requests apart: whether a proposal equals the greedy choice and whether a sampled one
    is accepted are different questions."""

    def __init__(self, max_proposals: int) -> None:
        self.num_drafted = 0
        """Blocks of the pass that have proposals."""
        self._models = {is_greedy: SurvivalModel(max_proposals) for is_greedy in (True, False)}
        self._blocks = _NO_BLOCKS
        self._tried: dict[bool, list[tuple[Sequence[int], int]]] = {True: [], False: []}

    def begin(self, blocks: Blocks) -> None:
        """A pass of these is about to run."""
        self._blocks = blocks
        self.num_drafted = len(blocks) - list(blocks.num_proposals).count(0)

    @property
    def rates(self) -> list[Sequence[float]]:
        """Of each block, P(accept | all before accepted) by cell."""
        greedy, sampled = self._models[True].rates, self._models[False].rates
        return [greedy if is_greedy else sampled for is_greedy in self._blocks.is_greedy]

    @property
    def expected(self) -> Sequence[float]:
        """What to expect of rows that must not be looked at, by position; as for the first block."""
        return self._models[self._blocks.is_greedy[0]].expected

    def acceptances(self, outcomes: Outcomes) -> list[Acceptance]:
        """What the target made of the blocks that were verified. To be learnt from when all is decided that goes by
        what was known before."""
        if not any(outcomes.num_verified):
            return []
        blocks = self._blocks
        cells, is_greedy = blocks.cells, blocks.is_greedy
        if outcomes.uids != blocks.uids:
            row_of = {uid: row for row, uid in enumerate(blocks.uids)}
            rows = [row_of[uid] for uid in outcomes.uids]
            cells, is_greedy = [cells[row] for row in rows], [is_greedy[row] for row in rows]
        rate_of = {key: model.rates.__getitem__ for key, model in self._models.items()}
        found = []
        for uid, num_verified, num_accepted, own_cells, key in zip(
            outcomes.uids, outcomes.num_verified, outcomes.num_accepted, cells, is_greedy, strict=True
        ):
            if num_verified:
                num_tried = num_accepted + 1 if num_accepted < num_verified else num_verified
                tried = own_cells[:num_tried]
                found.append((uid, num_tried, num_accepted, sum(map(rate_of[key], tried))))
                self._tried[key].append((tried, num_accepted))
        return found

    def learn(self) -> None:
        """The pass has ended."""
        for key, model in self._models.items():
            model.note(self._tried[key])
            self._tried[key].clear()
        self._blocks, self.num_drafted = _NO_BLOCKS, 0

    def curves(self, first: int, most: int) -> Iterator[tuple[int, list[float]]]:
        """Uid and survivals of up to `most` of the blocks that have proposals, from the one with the number `first` on,
        round and round."""
        blocks = self._blocks
        drafted = [row for row, num_proposals in enumerate(blocks.num_proposals) if num_proposals]
        for i in range(min(most, len(drafted))):
            row = drafted[(first + i) % len(drafted)]
            cells = blocks.cells[row][: blocks.num_proposals[row]]
            yield blocks.uids[row], self._models[blocks.is_greedy[row]].curve(cells)
